-- Sizes of all structures of a slot. Since a read fails on a key of a foreign type, it is also the check that no
-- later write can fail half-way.
local function measure(slot)
  return {
    store = redis.call('ZCARD', slot.store),
    prepare = redis.call('ZCARD', slot.prepare),
    retry = redis.call('ZCARD', slot.retry),
    dead = redis.call('ZCARD', slot.dead),
    body = redis.call('HLEN', slot.body),
    error = redis.call('HLEN', slot.error),
    reason = redis.call('HLEN', slot.reason),
    dead_body = redis.call('HLEN', slot.dead_body),
  }
end
