-- A delivery has used up its retries, or was rejected: out of the group's pending list and into its dead, with its last
-- `failure` as the reason, and its fields, since the stream may be trimmed before anybody looks. Returns how many
-- bytes it has moved.
-- @include lose_entry
local function bury_entry(slot, id, failure, attempts, now_ms, totals, lost)
  local found = redis.call('XRANGE', slot.store, id, id, 'COUNT', 1)[1]
  if not found then
    lose_entry(slot, id, totals, lost)
    return 0
  end
  redis.call('ZADD', slot.dead, string.format('%.0f', now_ms), id)
  failure.attempts = attempts
  redis.call('HSET', slot.reason, id, cjson.encode(failure))
  local packed = cmsgpack.pack(found[2])
  redis.call('HSET', slot.dead_body, id, packed)
  redis.call('XACK', slot.store, slot.group, id)
  redis.call('ZREM', slot.retry, padded_id(id))
  redis.call('HDEL', slot.error, id)
  count(totals, 'buried', 1)
  return #packed
end
