-- Whether deliveries of earlier owners are still open, and when the last of their leases ends, 0 where all have ended.
-- A new owner handles nothing beside them: until their leases have ended, each may have a handler that runs. Reading on
-- before they are taken over would mix up the order. Looks at 1,000 deliveries of each consumer at most, and takes
-- their number off `out.rows`. `slot.clear`: nothing of earlier owners is open, as this one has found, or it is none.
-- @include belongs
local function others_at_work(slot, epoch, now_ms, lease_ms, out)
  if slot.clear then
    return false, 0
  end
  local open, ends = false, 0
  for _, row in ipairs(redis.call('XPENDING', slot.store, slot.group)[4] or {}) do
    if not belongs(row[1], slot.consumer) and row[1] ~= '(waiting)' then
      open, out.rows = true, out.rows - math.min(1000, tonumber(row[2]))
      for _, held in ipairs(redis.call('XPENDING', slot.store, slot.group, '-', '+', 1000, row[1])) do
        if held[3] < lease_ms then
          ends = math.max(ends, now_ms - held[3] + lease_ms)
        end
      end
    end
  end
  if not open then
    redis.call('HSET', slot.meta, 'clear', epoch)
    slot.clear = true
  end
  return open, ends
end
