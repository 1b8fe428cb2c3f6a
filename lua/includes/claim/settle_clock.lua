-- Lets the skew of a slot's clock follow its lead once no lease can end early by that: all that is held has a stamp
-- of the lead, or nothing is held, where both shrink as far as stamps still grow. `slot.oldest`: lowest claim score,
-- or false.
-- @include whole
local function settle_clock(slot, clock, now_ms)
  if not slot.oldest then
    local lead = math.max(0, (clock.last or 0) + 1 - now_ms)
    if clock.lead > lead or clock.skew ~= clock.lead then
      clock.lead, clock.skew, clock.changed = math.min(clock.lead, lead), math.min(clock.lead, lead), true
    end
    if clock.lease_ms > clock.own_ms then
      clock.lease_ms, clock.lease, clock.till = clock.own_ms, whole(clock.own_ms), nil
    end
  elseif clock.lead ~= clock.skew and slot.oldest >= clock.mark * 1000 then
    clock.skew, clock.changed = clock.lead, true
  end
  clock.now = now_ms + clock.skew
end
