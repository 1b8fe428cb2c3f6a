-- Why a delivery failed, as a table, and since when its message has been failing. A first delivery starts afresh.
-- @include read_failure
local function failure_of(slot, content, first_delivery, now_ms, kind, message)
  local now = string.format('%.0f', now_ms)
  local first_ms = now
  if not first_delivery then
    first_ms = read_failure(redis.call('HGET', slot.error, content)).first_ms or now
  end
  return { first_ms = first_ms, last_ms = now, type = kind, message = message }
end
