-- Takes up to `quota` entries whose wait for a retry is over, those released before they were begun first.
local function take_retries(slot, now_ms, quota, entries, counts, totals, lost)
  local upto = string.format('%.0f', now_ms)
  local due = quota > 0 and redis.call('ZRANGEBYSCORE', slot.retry, '-inf', upto, 'LIMIT', 0, quota) or {}
  for _, member in ipairs(due) do
    local row = redis.call('XPENDING', slot.store, slot.group, member, member, 1)[1]
    if row and row[2] == '(waiting)' then
      take_over(slot, row[1], row[4], entries, counts, totals, lost)
    end
    redis.call('ZREM', slot.retry, member) -- also where somebody else has acked or claimed it by hand
  end
  return #due
end
