-- A claim from one slot for a group: settle, restart leases, redeliver, read. For its tables see claim_entries. The
-- lease of a delivery ends `lease_ms` after it was handed over, by the age that Redis counts (scan_pending).
-- @include fence, totals, redis, failures, dead, stream_ids, stream_groups, stream_settlements, stream_read

-- From where on the leases of a group's deliveries have to begin once more, see restart_leases; nil where they have
-- not. Also whether it is time to note Redis' time again.
local function leases_to_restart(stored, now_ms, lease_ms)
  local seen, upto = string.match(stored or '', '^(%d+) ?(%S*)$')
  seen = tonumber(seen or 0)
  if seen > now_ms then
    return '-', true
  end
  return upto and upto ~= '' and '(' .. upto or nil, now_ms - seen >= math.min(1000, lease_ms / 10)
end

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

-- Redis counts the age of a delivery by its clock: once that was set back, leases that run would end late by as much.
-- So a claim notes Redis' time in `seen` of the group's hash, and one that finds a later time there has all leases that
-- run begin once more, a step at a time: behind that time stands the id up to which this is done. So a lease ends late
-- by its own length at most. `stored`: what `seen` holds. A step looks at `most` deliveries, and takes their number off
-- `out.rows`. What a server drops over it, since it was trimmed or deleted, is counted as lost. Returns what `seen` is
-- to hold, nil where it stays as it is; whether leases have begun once more; and whether there is more to do.
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

-- Whether deliveries of earlier owners are still open, and when the last of their leases ends, 0 where all have ended.
-- A new owner handles nothing beside them: until their leases have ended, each may have a handler that runs. Reading on
-- before they are taken over would mix up the order. Looks at 1,000 deliveries of each consumer at most, and takes
-- their number off `out.rows`. `slot.clear`: nothing of earlier owners is open, as this one has found, or it is none.
local function others_at_work(slot, epoch, now_ms, lease_ms, out)
  if slot.clear then
    return false, 0
  end
  local open, ends = false, 0
  for _, row in ipairs(redis.call('XPENDING', slot.store, slot.group)[4] or {}) do
    if not belongs(row[1], slot.consumer) and row[1] ~= '(waiting)' then
      open, out.rows = true, out.rows - math.min(1000, tonumber(row[2]))
      for _, held in ipairs(redis.call('XPENDING', slot.store, slot.group, '-', '+', 1000, row[1])) do
        if held[3] < lease_ms then
          ends = math.max(ends, now_ms - held[3] + lease_ms)
        end
      end
    end
  end
  if not open then
    redis.call('HSET', slot.meta, 'clear', epoch)
    slot.clear = true
  end
  return open, ends
end

-- Takes up to `quota` entries whose wait for a retry is over, those released before they were begun first, until `out`
-- is full. At most as many as `out.work` has left, but one: each costs several commands. Returns how many it moved.
local function take_retries(slot, now_ms, quota, out, totals, lost)
  local upto = string.format('%.0f', now_ms)
  quota = math.min(quota, math.max(1, out.work))
  local due = quota > 0 and redis.call('ZRANGEBYSCORE', slot.retry, '-inf', upto, 'LIMIT', 0, quota) or {}
  for i, member in ipairs(due) do
    if is_full(out) then
      return i - 1
    end
    out.work = out.work - 1
    local row = redis.call('XPENDING', slot.store, slot.group, member, member, 1)[1]
    if row and row[2] == '(waiting)' then
      take_over(slot, row[1], row[4], out, totals, lost)
    end
    redis.call('ZREM', slot.retry, member) -- also where somebody else has acked or claimed it by hand
  end
  return #due
end

-- One step of a pass over the group's pending list, oldest first: takes over up to `quota` deliveries whose lease has
-- run out, and buries those without retries left. The list knows no order by time, so a pass notes when the next lease
-- can end: the next pass begins then, and each entry is met about once a lease however many there are. A long pass that
-- finds nothing takes its time, so that new entries need not wait for it. `pass`: at (when the next step is due, false:
-- unknown), cursor (last id met, '' between passes), start, first (earliest end of a lease met), pause (ms after a
-- step that looked at `step` entries and found nothing; less after one that looked at fewer). A step moves 64 at most,
-- and no more than `out.work` has left, but one: each costs several commands. What is handed over or buried counts into
-- the bytes of `out`; what it looks at, `most` at most, into its rows. Sets `slot.taken` where it took anything.
-- Returns how many it moved.
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
      tally(totals, 'expired', 1)
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

local STATE = { 'taken', 'scan_at', 'stamp', 'clear', 'scan_cursor', 'scan_start', 'scan_first', 'turn', 'seen',
  'again' }

local SETTLED = { 'taken', 'scan_at' } -- what a settlement alone needs of it

-- The pass over the pending list as the last claim has left it: see scan_pending.
local function pass_of(slot, rules, limit, stored, now_ms, is_pending)
  local pass = { at = tonumber(stored[5]), cursor = stored[8] or '', start = tonumber(stored[9] or 0),
    first = tonumber(stored[10] or 0), pause = 0, step = rules.scan_limit }
  if not pass.at or pass.at > now_ms + rules.lease_ms then -- no lease ends later: the clock was ahead then
    pass.at = is_pending and now_ms or nil
  end
  if limit > 0 and pass.at and pass.at <= now_ms then
    local length = redis.call('XLEN', slot.store)
    if length > 4 * rules.scan_limit then
      pass.pause = math.min(20, math.floor(rules.lease_ms / 4 * rules.scan_limit / length))
    end
  end
  return pass
end

-- Writes down what a claim has changed of the pass, Redis' time where it is to be noted, and whose turn is next where
-- the limit was odd.
local function note_pass(slot, pass, seen, turned, stored)
  local fields = turned and { 'turn', turned } or {}
  if seen then
    fields[#fields + 1], fields[#fields + 2] = 'seen', seen
  end
  if not pass.at and stored[5] then
    redis.call('HDEL', slot.meta, 'scan_at')
  elseif pass.at and (pass.at ~= tonumber(stored[5]) or pass.cursor ~= stored[8] or
    pass.start ~= tonumber(stored[9]) or pass.first ~= tonumber(stored[10])) then
    fields = { 'scan_at', whole(pass.at), 'scan_cursor', pass.cursor, 'scan_start', whole(pass.start),
      'scan_first', whole(pass.first), unpack(fields) }
  end
  if fields[1] then
    redis.call('HSET', slot.meta, unpack(fields))
  end
end

local function is_retry_due(slot, now_ms)
  local first = redis.call('ZRANGE', slot.retry, 0, 0, 'WITHSCORES')[2]
  return first and tonumber(first) <= now_ms
end

local function some(list)
  return list[1] and list or false
end

-- Reads new entries, in the consumer's name or in one of the claim's own. Returns whether there may be more, the stamp
-- of that name or 0, and how many it has read.
local function read_on(slot, rules, turn, most, stored, sizes, out, now_ms, totals)
  local largest = tonumber(sizes[1] or 0)
  local bound = sizes[2] and math.max(16384, largest) or nil
  local reader, stamp = slot.consumer, 0
  if turn.own > 0 then
    -- the one before is for what is taken now; a group that was removed and made anew has not had it, either
    stamp = math.max(now_ms, turn.own, tonumber(stored[6] or 0) + 2, tonumber(sizes[3] or 0) + 1)
    redis.call('HSET', slot.stream, 'stamp', whole(stamp))
    redis.call('HSET', slot.meta, 'stamp', whole(stamp))
    reader = slot.consumer .. '#' .. whole(stamp)
  end
  local more, own = read_new(slot, reader, most, rules.piece, bound, largest, out, totals)
  if bound and out.largest > bound then -- sent by a release that does not keep the size
    redis.call('HSET', slot.stream, 'largest', whole(out.largest))
  end
  return more, stamp, own
end

-- A claim from one slot for a group: settles the previous ones, delivers again what has to be, and reads new entries.
-- `slot` has the keys, `stream` and `wake` among them, and the names of group and consumer; `rules` are the topic's;
-- `turn` says in whose name how much is claimed, the least stamp of a name of the claim's own or 0, and that what it
-- settles stands in ARGV from `at` on. Returns the reply. `rules.joined`: the caller has written. `rules.room` has
-- `left`, bytes to hand over in the whole call; where they are used up, a slot that is not the first waits for the next
-- call, and its reply says that it is due at once. `rules.budget` is what a call may do beside: `work`, entries that
-- are nacked or come again, `most` of it to begin with, and `rows`, pending entries to look at. Where these are used
-- up, each slot moves one more and looks at 16; an owner that would have to look for those before it waits, too.
-- In the reply `false` stands for an empty table: to convert one costs Redis as much as a command.
-- A key is read before the first write to any: one of a foreign type changes nothing.
local function claim_entries(slot, rules, turn, now_ms)
  local epoch, limit, lease_ms, max_retries = turn.epoch, turn.limit, rules.lease_ms, rules.max_retries
  local room, budget = rules.room, rules.budget
  local refusal, newer, paused, stored = check_fence(slot.meta, epoch, turn.ensemble, limit > 0 and STATE or SETTLED)
  if refusal then
    return refusal
  end
  slot.clear = epoch == '0' or stored[7] == epoch
  slot.again = stored[13]
  local waits, died = false, false
  slot.plain = redis.call('EXISTS', slot.retry, slot.dead, slot.error, slot.reason, slot.dead_body) == 0
  if not slot.plain then
    waits, died = redis.call('ZCARD', slot.retry) > 0, redis.call('ZCARD', slot.dead) > 0
    for _, hash in ipairs({ slot.error, slot.reason, slot.dead_body }) do
      redis.call('HLEN', hash)
    end
  end
  local sizes = limit > 0 and redis.call('HMGET', slot.stream, 'largest', 'sized', 'stamp')
  local oldest = redis.pcall('XPENDING', slot.store, slot.group, '-', '+', 1)
  if oldest.err and not string.find(oldest.err, 'NOGROUP', 1, true) then
    return oldest
  end

  local totals, stale, lost, swept = {}, {}, {}, 0
  if newer or not rules.joined then
    begin_write({ store = slot.retry, meta = slot.meta }, newer, epoch, turn.ensemble)
  end
  if oldest.err then
    redis.call('XGROUP', 'CREATE', slot.store, slot.group, '0', 'MKSTREAM')
  end
  local back, at, nacked = settle_entries(slot, turn.at, now_ms, max_retries, totals, stale, lost)
  local unmatched = settle_whole_reads(slot, at, tonumber(stored[4] or 0), totals)
  local unseen = nacked < tonumber(ARGV[turn.at]) and whole(nacked) or nil
  waits = waits or nacked > 0
  if died or nacked > 0 then
    trim_dead(slot, now_ms, rules.max_dead_age, rules.max_dead, totals)
  end

  local out = {
    flat = {}, ids = {}, contents = {}, tail = {}, number = 0, left = room.left, largest = 0,
    work = budget.work - nacked, rows = budget.rows,
  }
  local seen, restarted, unfinished = nil, false, false
  if limit > 0 and oldest[1] then
    local most = math.min(rules.scan_limit, math.max(16, out.rows))
    seen, restarted, unfinished = restart_leases(slot, stored[12], now_ms, lease_ms, most, out, totals, lost)
  end
  local pass = pass_of(slot, rules, limit, stored, now_ms, oldest[1])
  if restarted then
    pass.at, pass.cursor = now_ms, '' -- what it knows of the ends of leases is over
  end
  local function redeliver(quota)
    local before = out.number
    if waits then
      swept = swept + take_retries(slot, now_ms, quota, out, totals, lost)
    end
    local left, most = quota - (out.number - before), math.min(rules.scan_limit, math.max(16, out.rows))
    swept = swept + scan_pending(slot, pass, now_ms, lease_ms, max_retries, left, most, out, totals, lost)
  end

  local more, others, busy_until, stamp, own, turned = false, false, 0, 0, 0, nil
  local claims = limit > 0 and not paused
  if claims and (room.begun and room.left <= 0 or not slot.clear and out.rows <= 0) then
    more, claims = true, false
  elseif claims then
    room.begun = true
    others, busy_until = others_at_work(slot, epoch, now_ms, lease_ms, out)
  end
  if claims and busy_until == 0 then
    local odd = tonumber(stored[11] or 0)
    redeliver(epoch ~= '0' and limit or math.floor((limit + odd) / 2))
    turned = limit % 2 == 1 and whole(1 - odd)
    local wanted = limit - out.number
    if wanted == 0 or is_full(out) or epoch ~= '0' and waits and out.work <= 0 and is_retry_due(slot, now_ms) then
      more = true -- an owner reads on only once it has all that came back
    elseif not (others and others_at_work(slot, epoch, now_ms, lease_ms, out)) then
      -- who does much of the other work takes few new ones: those left over are due at once
      wanted = out.work <= budget.most * 3 / 4 and math.min(wanted, 250) or wanted
      more, stamp, own = read_on(slot, rules, turn, wanted, stored, sizes, out, now_ms, totals)
    end
    if out.work > 0 then
      redeliver(limit - out.number)
    end
  end
  more = more or unfinished
  if limit > 0 and not oldest[1] and out.number > 0 then
    local _, late = leases_to_restart(stored[12], now_ms, lease_ms)
    seen = late and whole(now_ms) or nil
  end
  room.left, budget.work, budget.rows = out.left, out.work, out.rows
  if slot.taken then
    note_taken(slot, stored[6], stamp)
  end
  drop_names(slot)
  if not pass.at and out.number > 0 then
    pass.at = now_ms + lease_ms
  end

  if limit > 0 then
    note_pass(slot, pass, seen, turned, stored)
  end
  write_totals(slot.meta, totals)
  if limit <= 0 and oldest.err then
    redis.call('XGROUP', 'DESTROY', slot.store, slot.group)
  end
  if limit <= 0 and back > 0 then
    hint(rules.publish, slot.wake, '0')
  end

  local due = 0
  if more then
    due = now_ms
  elseif busy_until > 0 then
    due = busy_until
  elseif not paused then
    local first = waits and redis.call('ZRANGE', slot.retry, 0, 0, 'WITHSCORES')[2]
    due = first and math.max(now_ms, tonumber(first)) or 0
    if pass.at then
      local scan_at = math.max(now_ms, pass.at)
      due = due == 0 and scan_at or math.min(due, scan_at)
    end
  end
  return { whole(now_ms), whole(due), whole(swept), some(stale), some(out.flat), some(lost), some(out.ids),
    some(out.contents), some(out.tail), some(unmatched), whole(stamp), whole(stamp > 0 and own or 0), unseen }
end
