-- Whether deliveries of earlier owners are still open. A new owner waits for their leases: reading on would mix up the
-- order, and taking them over at once could run one message twice at a time.
local function others_at_work(slot, epoch)
  if epoch == '0' or redis.call('HGET', slot.meta, 'clear') == epoch then
    return false
  end
  for _, row in ipairs(redis.call('XPENDING', slot.store, slot.group)[4] or {}) do
    if row[1] ~= slot.consumer and row[1] ~= '(waiting)' then
      return true
    end
  end
  redis.call('HSET', slot.meta, 'clear', epoch)
  return false
end
