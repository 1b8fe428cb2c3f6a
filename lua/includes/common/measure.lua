-- Sizes of the structures of a slot. Since a read fails on a key of a foreign type, it is also the check that no
-- later write can fail half-way. Most slots have but store, prepare and meta: then one command sees that, `quiet`.
-- Others have bodies beside them, and no more: `bodied`.
-- `others_only`: in such slots leave out store and prepare, for who reads them before its first write, or never writes.
local QUIET = { quiet = true, retry = 0, dead = 0, body = 0, error = 0 }

local function measure(slot, others_only)
  local others = redis.call('EXISTS', slot.retry, slot.dead, slot.body, slot.error, slot.reason, slot.dead_body,
    slot.held or slot.body) -- the bodies count twice where nothing is held
  if others == 0 and others_only then
    return QUIET
  end
  local body = others > 0 and redis.call('HLEN', slot.body) or 0
  local sizes = { quiet = others == 0, bodied = others == 2 and body > 0 and not slot.held, body = body }
  local plain = sizes.quiet or sizes.bodied
  if not (plain and others_only) then
    sizes.store, sizes.prepare = redis.call('ZCARD', slot.store), redis.call('ZCARD', slot.prepare)
  end
  sizes.retry, sizes.dead, sizes.error = 0, 0, 0
  if not plain then
    sizes.retry, sizes.dead = redis.call('ZCARD', slot.retry), redis.call('ZCARD', slot.dead)
    sizes.error, sizes.reason = redis.call('HLEN', slot.error), redis.call('HLEN', slot.reason)
    sizes.dead_body = redis.call('HLEN', slot.dead_body)
    sizes.held = slot.held and redis.call('HLEN', slot.held)
  end
  return sizes
end
