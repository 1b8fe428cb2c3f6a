-- Drops what would be delivered last until store is within its bound: the lowest priorities, the latest due times; up
-- to 1,000 a call, and up to 32 MiB of bodies. What was delivered before is left to its retries. Returns how many were
-- dropped.
-- @include forget_unused
-- @include count
local function drop_excess(slot, highest_first, max_backlog, max_retries, totals)
  local excess = math.min(redis.call('ZCARD', slot.store) - max_backlog, 1000)
  if excess <= 0 then
    return 0
  end
  local above = '(' .. max_retries
  local last
  if highest_first then
    last = redis.call('ZRANGEBYSCORE', slot.store, above, '+inf', 'LIMIT', 0, excess)
  else
    last = redis.call('ZREVRANGEBYSCORE', slot.store, '+inf', above, 'LIMIT', 0, excess)
  end
  local doomed, left_bytes = last, 33554432
  if redis.call('HLEN', slot.body) > 0 then
    doomed = {}
    for i, content in ipairs(last) do
      if left_bytes <= 0 then
        break
      end
      doomed[i] = content
      left_bytes = left_bytes - redis.call('HSTRLEN', slot.body, content)
    end
  end
  if #doomed > 0 then
    redis.call('ZREM', slot.store, unpack(doomed))
    forget_unused(slot, doomed)
    if slot.born then
      redis.call('ZREM', slot.born, unpack(doomed))
    end
  end
  count(totals, 'dropped', #doomed)
  return #doomed
end
