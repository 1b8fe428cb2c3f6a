-- The stamp of a claim or a renewal: Redis' time in ms plus the clock's lead, or the last one plus 1, so that no two
-- in a slot are alike. `slot.unheld`: nothing is in prepare, as far as the caller knows. Where more than one is drawn
-- in a millisecond for long, the lead follows; the skew only when nothing is held from before, since leases may not
-- end early.
local function next_stamp(slot, clock, now_ms)
  if not clock.last then -- the first claim here, or meta was deleted
    local highest = not slot.unheld and tonumber(redis.call('ZREVRANGE', slot.prepare, 0, 0, 'WITHSCORES')[2]) or 0
    clock.last = highest < (now_ms + 86400000) * 1000 and math.max(0, math.floor(highest / 1000)) or 0
  end
  local stamp = math.max(now_ms + clock.lead, clock.last + 1)
  local ahead = stamp - now_ms
  if ahead > clock.lead + 1000 then
    if slot.unheld then
      clock.lead, clock.skew = ahead, ahead
    elseif clock.lead == clock.skew then
      clock.lead, clock.mark = ahead, stamp
    end
  end
  return stamp
end
