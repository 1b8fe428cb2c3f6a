-- Redis counts the age of a delivery by its clock: once that was set back, leases that run would end late by as much.
-- So a claim notes Redis' time in `seen` of the group's hash, and one that finds a later time there has all leases that
-- run begin once more, a step at a time: behind that time stands the id up to which this is done. So a lease ends late
-- by its own length at most. `stored`: what `seen` holds. A step looks at `most` deliveries, and takes their number off
-- `out.rows`. What a server drops over it, since it was trimmed or deleted, is counted as lost. Returns what `seen` is
-- to hold, nil where it stays as it is; whether leases have begun once more; and whether there is more to do.
-- @include lose_entry
-- @include whole
-- @include leases_to_restart
local function restart_each(slot, holder, ids, totals, lost)
  local claim, kept = { slot.store, slot.group, holder, '0', unpack(ids) }, {}
  claim[#claim + 1], claim[#claim + 2], claim[#claim + 3] = 'IDLE', '0', 'JUSTID'
  for _, id in ipairs(redis.call('XCLAIM', unpack(claim))) do
    kept[id] = true
  end
  for _, id in ipairs(ids) do
    if not kept[id] then
      lose_entry(slot, id, totals, lost)
      slot.taken = true
      slot.left[holder] = string.find(holder, '#', 1, true) and true or nil
    end
  end
end

local function restart_leases(slot, stored, now_ms, lease_ms, most, out, totals, lost)
  local from, late = leases_to_restart(stored, now_ms, lease_ms)
  if not from then
    return late and whole(now_ms) or nil, false, false
  end
  local rows, held, holders = redis.call('XPENDING', slot.store, slot.group, from, '+', most), {}, {}
  out.rows = out.rows - #rows
  for _, row in ipairs(rows) do
    local holder = row[2]
    if holder ~= '(waiting)' and row[3] < lease_ms then
      if not held[holder] then
        held[holder], holders[#holders + 1] = {}, holder
      end
      table.insert(held[holder], row[1])
    end
  end
  for _, holder in ipairs(holders) do
    restart_each(slot, holder, held[holder], totals, lost)
  end
  local more = #rows == most
  return whole(now_ms) .. (more and ' ' .. rows[#rows][1] or ''), true, more
end
