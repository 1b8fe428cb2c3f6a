-- The clock by which the leases of a slot run: Redis' time plus `skew`, by which Redis' clock was set back. So it never
-- goes back, and the stamps of claims can grow for ever. `stamp` and `lease` are those fields of meta, see
-- docs/internals/semantics.md. Returns a table: `now`, `skew`, `lease_ms` (longest in force), `last` (the last stamp,
-- nil where none is known), `seen` (Redis' time then), `lead` (how far new stamps run ahead of Redis' time, at least),
-- `mark` (first stamp of that lead), `own_ms`; and `odd` where not all is as it mostly is: then also `lease` (what the
-- next claim notes as lease, nil to leave it), `till` (until when a lease that not all use is in force), `changed`
-- (Redis' clock was set back, or the skew is another: to be written).
-- @include whole
local function read_slot_clock(stamp, lease, now_ms, lease_ms)
  local last = tonumber(stamp)
  local clock = {
    last = last, seen = last or 0, lead = 0, skew = 0, mark = 0, own_ms = lease_ms, lease_ms = lease_ms, now = now_ms,
  }
  if last and last <= now_ms and lease == whole(lease_ms) then
    return clock
  end
  clock.odd = true
  if stamp and not last then
    local seen, lead, skew, mark
    last, seen, lead, skew, mark = string.match(stamp, '^(%d+) (%d+) ?(%d*) ?(%d*) ?(%d*)$')
    clock.last, clock.seen, clock.lead = tonumber(last or ''), tonumber(seen or 0), tonumber(lead or '') or 0
    clock.skew, clock.mark = tonumber(skew or '') or 0, tonumber(mark or '') or 0
  end
  local highest = math.max(clock.last or 0, clock.seen, clock.mark, now_ms + clock.lead)
  if not (clock.last and clock.last >= 0 and highest < 9e12 and clock.skew <= clock.lead) then
    clock.last, clock.seen, clock.lead, clock.skew, clock.mark = nil, 0, 0, 0, 0 -- none, or none of a script's
  end
  if now_ms < clock.seen then
    local back = clock.seen - now_ms
    clock.lead, clock.skew, clock.changed = clock.lead + back, clock.skew + back, true
  end
  clock.now = now_ms + clock.skew
  if lease ~= whole(lease_ms) then
    local longest, till = string.match(lease or '', '^(%d+) ?(%d*)$')
    longest, till = tonumber(longest or 0), tonumber(till or '')
    if longest > 86400000 or (till or 0) > clock.now + 172800000 then -- no topic has such a lease
      longest, till = 0, nil
    end
    clock.lease = whole(lease_ms)
    if longest == lease_ms then
      clock.lease, clock.till = nil, till
    elseif longest > lease_ms then
      till = till or (clock.last or clock.now) + longest
      if clock.now <= till then
        clock.lease_ms, clock.lease = longest, whole(longest) .. ' ' .. whole(till)
      end
    end
  end
  return clock
end
