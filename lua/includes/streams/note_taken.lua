-- Notes that deliveries were taken from their holders: claims with a stamp up to this one may not be acked as a whole.
-- `last` is the stamp in the group's hash, the last one of the slot; `newer` one that was given since, if any.
-- @include whole
local function note_taken(slot, last, newer)
  local stamp = tonumber(last or 0) + 1
  redis.call('HSET', slot.meta, 'taken', whole(stamp), 'stamp', whole(math.max(stamp, newer or 0)))
end
