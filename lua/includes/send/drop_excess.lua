-- Drops what would be delivered last until store is within its bound: the lowest priorities, the latest due times; up
-- to 1,000 a call. What was delivered before is left to its retries. Returns how many were dropped.
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
  for _, content in ipairs(last) do
    redis.call('ZREM', slot.store, content)
    forget_unused(slot, content)
    if slot.born then
      redis.call('ZREM', slot.born, content)
    end
  end
  count(totals, 'dropped', #last)
  return #last
end
