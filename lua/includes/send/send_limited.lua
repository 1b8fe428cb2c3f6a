-- As `send_batch` or `send_ahead`, to a slot with limits (see `send`), whose keys stand behind KEYS[base]: drops what
-- is too much, and notes when messages with a time to live were sent.
-- @include send_ahead
-- @include drop_excess
-- @include write_totals
local function send_limited(slot, rules, batch, base, unit, lowest, now_ms)
  local drop, max_retries, ttl = string.match(ARGV[6], '^(%d) (%d+) (%d)$')
  local max_backlog, born = rules.max_backlog, KEYS[base + 8]
  slot.retry, slot.error = KEYS[base + 6], KEYS[base + 7]
  redis.call('ZCARD', slot.retry)
  redis.call('HLEN', slot.error)
  redis.call('ZCARD', born)
  rules.max_backlog = drop == '0' and max_backlog or 0
  local reply
  if unit == 'at' then
    reply = send_ahead(slot, rules, batch, tonumber(lowest), now_ms)
  else
    reply = send_batch(slot, rules, batch, lowest, now_ms)
  end
  rules.max_backlog = max_backlog
  if reply.err then
    return reply
  end
  if ttl == '1' then
    slot.born = born
    for i = batch.at + 1, batch.at + 2 * batch.number - 1, 2 do
      redis.call('ZADD', born, whole(now_ms), batch.args[i])
    end
  end
  local totals = {}
  reply[3] = '0'
  if drop == '1' then
    reply[3] = whole(drop_excess(slot, unit == 'priority', max_backlog, tonumber(max_retries), totals))
  end
  write_totals(slot.meta, totals)
  return reply
end
