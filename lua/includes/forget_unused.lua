-- Deletes the body and the last failure of a content that has left store, unless it is in flight or waits for a retry.
local function forget_unused(slot, content)
  if not redis.call('ZSCORE', slot.prepare, content) and not redis.call('ZSCORE', slot.retry, content) then
    redis.call('HDEL', slot.body, content)
    redis.call('HDEL', slot.error, content)
  end
end
