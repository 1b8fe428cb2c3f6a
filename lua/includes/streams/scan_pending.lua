-- One step of a pass over the group's pending list, oldest first: takes over up to `quota` deliveries whose lease has
-- run out, and buries those without retries left. The list knows no order by time, so a pass notes when the next lease
-- can end: the next pass begins then, and each entry is met about once a lease however many there are. A long pass that
-- finds nothing takes its time, so that new entries need not wait for it. `pass`: at (when the next step is due, false:
-- unknown), cursor (last id met, '' between passes), start, first (earliest end of a lease met), pause (ms after a
-- step that looked at `step` entries and found nothing; less after one that looked at fewer). A step moves 64 at most,
-- and no more than `out.work` has left, but one: each costs several commands. What is handed over or buried counts into
-- the bytes of `out`; what it looks at, `most` at most, into its rows. Sets `slot.taken` where it took anything.
-- Returns how many it moved.
-- @include failure_of
-- @include record_failure
-- @include bury_entry
-- @include take_over
local function scan_pending(slot, pass, now_ms, lease_ms, max_retries, quota, most, out, totals, lost)
  if quota <= 0 or is_full(out) or not pass.at or now_ms < pass.at then
    return 0
  end
  if pass.cursor == '' then
    pass.start, pass.first = now_ms, now_ms + lease_ms
  end
  local from = pass.cursor == '' and '-' or '(' .. pass.cursor
  local rows = redis.call('XPENDING', slot.store, slot.group, from, '+', most)
  out.rows = out.rows - #rows
  local room = math.min(64, math.max(1, out.work))
  local none, moved, buried, full = pass.cursor == '' and #rows == 0, 0, 0, false
  for _, row in ipairs(rows) do
    local id, holder, idle_ms, deliveries = row[1], row[2], row[3], row[4]
    if holder == '(waiting)' then
      if idle_ms >= lease_ms and not redis.call('ZSCORE', slot.retry, padded_id(id)) then
        redis.call('ZADD', slot.retry, '0', padded_id(id)) -- a script broke off half-way
      end
    elseif idle_ms < lease_ms then
      pass.first = math.min(pass.first, now_ms - idle_ms + lease_ms)
    elseif out.left <= 0 and (out.number > 0 or buried > 0) or moved >= quota and deliveries <= max_retries
      or moved + buried >= room then
      full = true
      break
    else
      local failure = failure_of(slot, id, deliveries == 1, now_ms, 'LeaseExpired',
        'delivery ' .. deliveries .. ' was neither acked nor nacked within its lease')
      if deliveries > max_retries then
        out.left = out.left - bury_entry(slot, id, failure, deliveries, now_ms, totals, lost)
        buried = buried + 1
      else
        record_failure(slot, id, failure)
        take_over(slot, id, deliveries, out, totals, lost)
        moved = moved + 1
      end
      count(totals, 'expired', 1)
      out.work = out.work - 1
      slot.taken = true
      if string.find(holder, '#', 1, true) then
        slot.left[holder] = true
      end
    end
    pass.cursor = id
  end
  if not full and #rows < most then
    pass.cursor = ''
    pass.at = not none and math.max(pass.first, now_ms + math.min(1000, lease_ms / 10))
  elseif moved == 0 and not full then
    pass.at = now_ms + math.ceil(pass.pause * most / pass.step)
  end
  return moved
end
