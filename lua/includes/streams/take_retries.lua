-- Takes up to `quota` entries whose wait for a retry is over, those released before they were begun first, until `out`
-- is full. At most as many as `out.work` has left, but one: each costs several commands. Returns how many it moved.
-- @include take_over
local function take_retries(slot, now_ms, quota, out, totals, lost)
  local upto = string.format('%.0f', now_ms)
  quota = math.min(quota, math.max(1, out.work))
  local due = quota > 0 and redis.call('ZRANGEBYSCORE', slot.retry, '-inf', upto, 'LIMIT', 0, quota) or {}
  for i, member in ipairs(due) do
    if is_full(out) then
      return i - 1
    end
    out.work = out.work - 1
    local row = redis.call('XPENDING', slot.store, slot.group, member, member, 1)[1]
    if row and row[2] == '(waiting)' then
      take_over(slot, row[1], row[4], out, totals, lost)
    end
    redis.call('ZREM', slot.retry, member) -- also where somebody else has acked or claimed it by hand
  end
  return #due
end
