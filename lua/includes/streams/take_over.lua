-- Gives a pending entry to this consumer as its next delivery; one that is gone from the stream is accounted for.
-- @include hand_over
-- @include lose_entry
-- @include whole
local function take_over(slot, id, deliveries, out, totals, lost)
  local entry = redis.call('XCLAIM', slot.store, slot.group, slot.consumer, '0', id, 'RETRYCOUNT',
    whole(deliveries + 1))[1]
  if not entry then
    lose_entry(slot, id, totals, lost)
    return
  end
  hand_over(out, entry, deliveries + 1)
  count(totals, 'delivered', 1)
end
