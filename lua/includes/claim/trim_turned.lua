-- Removes from store all that was read in a view: two ranges of ranks, the one that lies further back first.
local function trim_turned(slot, view)
  local upto, tier = view.rank, view.tier
  if tier then
    local beyond = math.max(0, tier.place + tier.seen - tier.size)
    local from = tier.first + tier.place
    redis.call('ZREMRANGEBYRANK', slot.store, beyond - from - tier.seen, -from - 1)
    upto = tier.first + beyond
  end
  if upto > 0 then
    redis.call('ZREMRANGEBYRANK', slot.store, -upto, -1)
  end
end
