-- Sizes of the structures of a slot. Since a read fails on a key of a foreign type, it is also the check that no
-- later write can fail half-way. Most slots have but store, prepare and meta: then one command sees that, `quiet`.
-- `brief`: in a quiet slot leave out store and prepare, for who reads them before its first write, or never writes.
local function measure(slot, brief)
  local others = redis.call('EXISTS', slot.retry, slot.dead, slot.body, slot.error, slot.reason, slot.dead_body,
    slot.held or slot.body)
  if others == 0 then
    local store, prepare = nil, nil
    if not brief then
      store, prepare = redis.call('ZCARD', slot.store), redis.call('ZCARD', slot.prepare)
    end
    return { quiet = true, store = store, prepare = prepare, retry = 0, dead = 0, body = 0, error = 0 }
  end
  return {
    quiet = false, store = redis.call('ZCARD', slot.store), prepare = redis.call('ZCARD', slot.prepare),
    retry = redis.call('ZCARD', slot.retry), dead = redis.call('ZCARD', slot.dead),
    body = redis.call('HLEN', slot.body), error = redis.call('HLEN', slot.error),
    reason = redis.call('HLEN', slot.reason), dead_body = redis.call('HLEN', slot.dead_body),
    held = slot.held and redis.call('HLEN', slot.held),
  }
end
