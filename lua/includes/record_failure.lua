-- Remembers why a delivery failed, and since when this message has been failing. A first delivery starts afresh.
local function record_failure(slot, content, first_delivery, now_ms, kind, message)
  local first_ms = string.format('%.0f', now_ms)
  if not first_delivery then
    local earlier = redis.call('HGET', slot.error, content)
    if earlier then
      first_ms = cjson.decode(earlier).first_ms
    end
  end
  local record = { first_ms = first_ms, last_ms = string.format('%.0f', now_ms), type = kind, message = message }
  redis.call('HSET', slot.error, content, cjson.encode(record))
end
