-- Why a delivery failed, as a table, and since when its message has been failing. A first delivery starts afresh. Where
-- its content has failed before, and was sent again before it was acked, `again` says how often that was so, and
-- `refailed` counts it; not where `totals` is nil. Also returns the failure before it of the same message, an empty
-- table where there is none.
-- @include read_failure
-- @include count
local function failure_of(slot, content, first_delivery, now_ms, kind, message, totals)
  local now = string.format('%.0f', now_ms)
  local earlier = (totals or not first_delivery) and read_failure(redis.call('HGET', slot.error, content)) or {}
  local again = earlier.again
  if first_delivery then
    if earlier.last_ms then
      again = string.format('%.0f', (tonumber(again) or 0) + 1)
      count(totals, 'refailed', 1)
    end
    earlier = {}
  end
  return { first_ms = earlier.first_ms or now, last_ms = now, type = kind, message = message, again = again }, earlier
end
