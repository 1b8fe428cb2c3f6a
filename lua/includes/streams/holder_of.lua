-- In whose name a delivery is held: the consumer's; or, of a claim that read many new entries, a name of its own, the
-- consumer's with `#` and the stamp of the claim. So one command acks all of it, without ids: see settle_whole_reads.
-- The score of a delivery is its delivery count, or stamp x 1000 + 1. Returns holder, delivery count, stamp or nil.
-- @include whole
local function holder_of(slot, score)
  if score < 1e9 then
    return slot.consumer, score, nil
  end
  local stamp = math.floor(score / 1000)
  return slot.consumer .. '#' .. whole(stamp), score - 1000 * stamp, stamp
end
