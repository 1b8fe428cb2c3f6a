-- Sizes of the structures of a slot. Since a read fails on a key of a foreign type, it is also the check that no
-- later write can fail half-way. Most slots have but store, prepare and meta: then one command sees that, `quiet`.
-- `brief`: in a quiet slot leave out store and prepare, for who reads prepare before its first write, and no store.
local function measure(slot, brief)
  local others = redis.call('EXISTS', slot.retry, slot.dead, slot.body, slot.error, slot.reason, slot.dead_body)
  local sizes = { quiet = others == 0 }
  if not brief or others > 0 then
    sizes.store, sizes.prepare = redis.call('ZCARD', slot.store), redis.call('ZCARD', slot.prepare)
  end
  sizes.retry = others > 0 and redis.call('ZCARD', slot.retry) or 0
  sizes.dead = others > 0 and redis.call('ZCARD', slot.dead) or 0
  sizes.body = others > 0 and redis.call('HLEN', slot.body) or 0
  sizes.error = others > 0 and redis.call('HLEN', slot.error) or 0
  sizes.reason = others > 0 and redis.call('HLEN', slot.reason) or 0
  sizes.dead_body = others > 0 and redis.call('HLEN', slot.dead_body) or 0
  return sizes
end
