-- Adds a batch (see read_batch) to store; `keep_first`: present ones stay as they are; with `slot.scale` these keep
-- their ages. Returns how many were new. One command per 1,000 messages: the server's cheapest path.
local function store_batch(slot, keep_first, batch)
  local new, messages, at, number = 0, batch.args, batch.at, batch.number
  for first = at, at + 2 * number - 1, 2000 do
    local last = math.min(first + 1999, at + 2 * number - 1)
    if keep_first then
      new = new + redis.call('ZADD', slot.store, 'NX', unpack(messages, first, last))
    elseif slot.scale then
      local added = redis.call('ZADD', slot.store, 'NX', unpack(messages, first, last))
      if added < (last - first + 1) / 2 then
        -- @include keep_ages
        keep_ages(slot, messages, first, last)
      end
      new = new + added
    else
      new = new + redis.call('ZADD', slot.store, unpack(messages, first, last))
    end
  end
  return new
end
