-- Why a delivery failed, as a table, and since when its message has been failing. A first delivery starts afresh. Also
-- returns the failure before it, an empty table where there is none.
-- @include read_failure
local function failure_of(slot, content, first_delivery, now_ms, kind, message)
  local now = string.format('%.0f', now_ms)
  local earlier = first_delivery and {} or read_failure(redis.call('HGET', slot.error, content))
  return { first_ms = earlier.first_ms or now, last_ms = now, type = kind, message = message }, earlier
end
