-- A delivery has used up its retries, or was rejected: out of the group's pending list and into its dead, with reason
-- and fields, since the stream may be trimmed before anybody looks.
local function bury_entry(slot, id, attempts, now_ms, totals, lost)
  local found = redis.call('XRANGE', slot.store, id, id, 'COUNT', 1)[1]
  if not found then
    lose_entry(slot, id, totals, lost)
    return
  end
  redis.call('ZADD', slot.dead, string.format('%.0f', now_ms), id)
  local failure = redis.call('HGET', slot.error, id)
  local reason = failure and cjson.decode(failure) or {}
  reason.attempts = attempts
  redis.call('HSET', slot.reason, id, cjson.encode(reason))
  redis.call('HSET', slot.dead_body, id, cmsgpack.pack(found[2]))
  redis.call('XACK', slot.store, slot.group, id)
  redis.call('ZREM', slot.retry, padded_id(id))
  redis.call('HDEL', slot.error, id)
  count(totals, 'buried', 1)
end
