-- Deletes the body and the last failure of a content that has left store and retry, unless it is still in flight.
local function forget(slot, content)
  if not redis.call('ZSCORE', slot.prepare, content) then
    redis.call('HDEL', slot.body, content)
    redis.call('HDEL', slot.error, content)
  end
end
