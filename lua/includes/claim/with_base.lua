-- A claim's reply, with what the tokens of an owner start from as its value number `at`, where adopt has moved the
-- slot: no token may be below those that owners of the ensemble before were given.
local function with_base(reply, turn, meta, at)
  if turn.epoch ~= '0' and turn.limit > 0 and type(reply) == 'table' and not reply.err then
    local base = redis.call('HGET', meta, 'token_base')
    if base then
      reply[at - 1] = reply[at - 1] or false
      reply[at] = base
    end
  end
  return reply
end
