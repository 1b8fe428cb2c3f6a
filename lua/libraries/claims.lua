-- A claim from one slot: settle, sweep, expire, take. The fields of the tables it works on are listed at claim_slot.
-- @include clock, fence, totals, redis, bodies, scores, room, settlements, claim_fast

-- Rescues what nobody holds any more: expired leases go back or die, due retries go to store; oldest first, up to
-- `limit` of each, and as many bytes, with the bodies that move along (see fold_cost), as `slot.budget` has left.
-- A failure tells which claims have ended one after the other, the last 8, newest first, and how many sends had merged
-- in this slot when the first did: a query of Spark may have committed what it claimed. Returns how many, and whether
-- more may be waiting.
local function sweep(slot, clock, now_ms, now_s, max_retries, limit, totals)
  local expired = slot.oldest and find_expired(slot, clock, now_ms, limit) or {}
  slot.quiet = slot.quiet and #expired == 0
  local number, budget, due, moved = #expired / 2, slot.budget, {}, 0
  if not slot.quiet then
    local upto = whole(now_s * 1000 + 999)
    due = redis.call('ZRANGEBYSCORE', slot.retry, '-inf', upto, 'WITHSCORES', 'LIMIT', 0, limit)
  end
  if #expired == 0 and #due == 0 then
    return 0, limit == 0
  end
  -- @include settlements, dead, scores, failures
  local merged = #expired > 0 and redis.call('HGET', slot.meta, 'merged') or 0
  merged = whole(merged + (totals.merged or 0))
  for i = 1, #expired, 2 do
    local content, left = expired[i], left_of(tonumber(expired[i + 1]), max_retries)
    local attempts = max_retries - left + 1
    local failure, earlier = failure_of(slot, content, left == max_retries, now_ms, 'LeaseExpired',
      'delivery ' .. attempts .. ' was neither acked nor nacked within its lease', totals)
    budget.bytes = budget.bytes - #content
    if earlier.committed then
      end_committed(slot, content, totals)
    elseif left == 0 then
      budget.bytes = budget.bytes - bury(slot, content, failure, attempts, now_ms, totals)
    else
      failure.claim, failure.merged = expired[i + 1], merged
      if earlier.claim then
        failure.claim, failure.merged = string.sub(expired[i + 1] .. ' ' .. earlier.claim, 1, 135), earlier.merged
      end
      record_failure(slot, content, failure)
      budget.bytes = budget.bytes - roll_back(slot, content, left, 0, now_ms, totals)
    end
    if budget.bytes <= 0 then
      number = (i + 1) / 2
      break
    end
  end
  for i = 1, #due, 2 do
    if budget.bytes <= 0 then
      break
    end
    moved, budget.bytes = moved + 1, budget.bytes - #due[i]
    local left = math.max(1, left_of(tonumber(due[i + 1]), max_retries))
    -- without retries no score says that it was delivered: one of 1 would be a time in 1970
    local score = left > max_retries and slot.timed and now_ms or left
    local _, cost = return_to_store(slot, due[i], whole(score), now_ms, totals)
    budget.bytes = budget.bytes - cost
    redis.call('ZREM', slot.retry, due[i])
  end
  if number > 0 then
    tally(totals, 'expired', number)
  end
  return number + moved, number < #expired / 2 or number == limit or moved < #due / 2 or moved == limit
end

local function any_of(values)
  for _, value in ipairs(values) do
    if value then
      return true
    end
  end
  return false
end

-- Buries what has outlived its time to live before it could be delivered: store -> dead, oldest first, up to `limit`,
-- and as many bytes of contents and bodies (see fold_cost) as `slot.budget` has left.
-- Time topics: due more than ttl_ms ago; `slot.born` is nil. PRIORITY: sent so long ago, as `slot.born` tells, where
-- entries of what has left store meanwhile are dropped, too. What was delivered before is left to its retries. Returns
-- the rank where the search goes on that was to go on at `start`: no message behind that one has a lower rank now (with
-- ties any, ranks count from 1 here, and 0 begins anew); and whether more may have to die.
local function expire(slot, start, now_ms, ttl_ms, max_retries, limit, totals)
  -- @include dead
  local before = '(' .. string.format('%.0f', now_ms - ttl_ms)
  local old
  if slot.born then
    old = redis.call('ZRANGEBYSCORE', slot.born, '-inf', before, 'LIMIT', 0, limit)
    for _ = 1, 23 do -- what is not there any more holds up nothing, unless there is very much of it
      if #old < limit or #old == 0 or any_of(redis.call('ZMSCORE', slot.store, unpack(old))) then
        break
      end
      redis.call('ZREM', slot.born, unpack(old))
      old = redis.call('ZRANGEBYSCORE', slot.born, '-inf', before, 'LIMIT', 0, limit)
    end
  else
    old = redis.call('ZRANGEBYSCORE', slot.store, '(' .. max_retries, before, 'LIMIT', 0, limit)
  end
  local now = string.format('%.0f', now_ms)
  local reason = cjson.encode({
    first_ms = now, last_ms = now, type = 'Expired', attempts = 0,
    message = 'not delivered within its time to live of ' .. string.format('%.0f', ttl_ms) .. ' ms',
  })
  local expired, budget, seen = 0, slot.budget, 0
  for i, content in ipairs(old) do
    if budget.bytes <= 0 then
      break
    end
    seen, budget.bytes = i, budget.bytes - #content
    local score = redis.call('ZSCORE', slot.store, content)
    if score and tonumber(score) > max_retries then
      local body = redis.call('HGET', slot.body, content)
      budget.bytes = budget.bytes - enter_dead(slot, content, body, reason, now, totals)
      redis.call('ZREM', slot.store, content)
      forget_unused(slot, { content })
      expired = expired + 1
    end
    if slot.born then
      redis.call('ZREM', slot.born, content)
    end
  end
  tally(totals, 'ttl_expired', expired)
  return math.max(slot.any and math.min(start, 1) or 0, start - expired), #old == limit or seen < #old
end

local function share_of_work(budget, limit)
  return budget.bytes > 0 and math.min(limit, math.max(1, budget.work)) or 0
end

-- A claim from one slot: settles the previous ones, sweeps, and takes what is due. Returns the reply. The slot's first
-- messages, two at least, tell whether more than one is due, and when the next one will be; so `peek` mostly is all of
-- store that has to be read. Most claims of few messages are brief: see claim_brief; the others take by take_due. Who
-- settles only, and gives something back that is due, tells the others: the channel's
-- name is that of the slot's.
--
-- Limit -1: a slot that is quiet, or has bodies and no more, is only settled; the reply says when its first message is
-- due, since that one may have been passed over by others as long as its twin was in flight. Where the room is used up,
-- what is due stays, and the reply says that it is due at once. Where the budget is used up, each slot sweeps one more,
-- as long as there are bytes; who does much of that takes few new ones. What is left is due at once. Where the topic
-- merges, what was moved leaves as much less for what is claimed; and nothing but claiming has half of the bytes.
--
-- Fields of the tables that all of a claim works on:
-- `rules`, the topic's, and what the slots of a call share:
--   lease_ms, max_retries, sweep_limit, max_dead_age, max_dead, publish: see `claim`; highest_first: see `order` there
--   joined: the call is for several slots, and has written
--   room: bytes of contents and bodies to hand over: `left`, and `first`, true until something is handed over
--   budget: what the call may do beside: `work`, messages that are swept, expired or nacked, `most` of it to begin
--     with; `bytes` of bodies that are moved; `halved` where the topic merges
-- `turn`, what is asked of the slot:
--   epoch, ensemble, limit, start: see `claim`; at, last: where in ARGV stands what it settles
-- `slot`, the slot and what is known of it:
--   store, prepare, retry, dead, body, meta, error, reason, dead_body, born, held: its keys, see `claim`
--   any: equal scores come in an order that the stamp decides; view: how far it has come with them, see read_turned
--   timed: scores are due times
--   quiet: no retries, dead, bodies and failures: what could only be found there is not looked for
--   oldest: claim score whose lease ends first, false without claims, nil where it may be another one now
--   unheld: nothing was in prepare before the sweep
--   retried: the topic merges, and has messages that wait for a retry
--   claimed: score of what this claim took, false for nothing
--   first, upcoming: where known, the first score in store, and the first due time that lies ahead; false for none
--   piece: how many messages to read before it is known whether they fit
--   page, page_ends: what take_alike has read, for take_fresh, and whether that is all that is due
--   passed: how many take_fresh has passed over, where ties are `any`
--   cut: the search ended since a message did not fit
--   outlived: function that notes what else is to be passed over, see take_unexpired
--   room, budget: those of `rules`
--   bodied: the slot has bodies; body_bound: none has more bytes, nil where that is not known; bound_broken: one has
--   assumed: contents whose bodies count as large as the bound until they are read; weight: for how much a byte counts
--   bodies, waiting: bodies, and values in `held`, that were read already, by content; false for none
--   weighed: contents whose bodies were asked for their sizes, their `number` and the `largest` size
--   refolded: a value went back into a copy in store
local function claim_slot(slot, rules, turn, now_ms, now_s)
  local highest_first, limit, start = rules.highest_first, turn.limit, turn.start
  local max_retries, sweep_limit = rules.max_retries, rules.sweep_limit
  local refusal, newer, paused, stored = check_fence(slot.meta, turn.epoch, turn.ensemble, true)
  if refusal then
    return refusal
  end
  local settle_only = limit < 0 and ARGV[turn.at] == '0'
  limit = math.max(0, limit)
  local sizes = measure(slot, true)
  local command = highest_first and 'ZREVRANGE' or 'ZRANGE'
  local peek, first_due = nil, 0
  if (sizes.quiet or sizes.bodied) and not (newer or paused or slot.any or slot.born or slot.held) then
    local number, score, name = brief_settlement(turn)
    if number then
      local most = rules.room.left > 0 and math.min(limit, BRIEF) or 0
      peek = redis.call(command, slot.store, '0', settle_only and '0' or whole(math.max(1, most)), 'WITHSCORES')
      local reply = claim_brief(slot, rules, turn, now_ms, sizes.bodied, stored, peek, number, score, name)
      if reply then
        return reply
      end
    end
  end

  if sizes.bodied then
    peek = nil
    redis.call('ZCARD', slot.store)
    redis.call('ZCARD', slot.prepare)
  end
  local clock = read_slot_clock(stored[4], stored[5], now_ms, rules.lease_ms)
  if slot.born then
    redis.call('ZCARD', slot.born)
  end
  slot.quiet, slot.timed = sizes.quiet and ARGV[turn.at] == '0', not highest_first
  settle_only = settle_only and (sizes.quiet or sizes.bodied)
  if settle_only then
    slot.oldest = false -- leases are left to the next claim
    first_due = next_due(slot, highest_first, paused and 'none' or 'all', now_ms, clock)
  elseif sizes.quiet and not peek then -- whatever becomes of it, store has been found to be what it should be
    peek = redis.call(command, slot.store, 0, 1, 'WITHSCORES')
  end

  begin_room(slot, rules.room, sizes.body + (sizes.held or 0), stored[8])
  slot.piece = peek and peek[1] and #peek[1] > 1024 and 64 or 256
  local budget, totals, stale, unmatched = rules.budget, {}, {}, {}
  slot.budget = budget
  if slot.held and not budget.halved then
    budget.halved, budget.bytes = true, budget.bytes / 2
  end
  local bytes_before = budget.bytes
  if newer then
    redis.call('ZCARD', slot.prepare) -- all that follows reads it before it writes to it
  end
  if newer or not rules.joined then
    begin_write(slot, newer, turn.epoch, turn.ensemble)
  end
  local at, back, nacked = settle_nacks(slot, turn.at, now_ms, max_retries, totals, stale)
  budget.work = budget.work - nacked
  nacked = nacked < tonumber(ARGV[turn.at]) and whole(nacked) or nil
  at = settle_acks(slot, at, sizes.body, sizes.error, totals, stale)
  at = settle_whole(slot, at, sizes.body == 0 and sizes.error == 0 and not slot.held, totals, unmatched)
  if settle_only then
    write_totals(slot.meta, totals)
    return { whole(now_ms), whole(first_due), '0', '0', stale, {}, {}, unmatched, '0', '', nacked }
  end
  slot.oldest = tonumber(redis.call('ZRANGE', slot.prepare, 0, 0, 'WITHSCORES')[2]) or false
  slot.unheld = not slot.oldest
  if clock.odd then
    -- @include clock
    settle_clock(slot, clock, now_ms)
  end
  sweep_limit = share_of_work(budget, sweep_limit)
  local swept, more = sweep(slot, clock, now_ms, now_s, max_retries, sweep_limit, totals)
  budget.work = budget.work - swept
  local more_outlived = false
  if at <= turn.last then
    -- @include claims
    slot.quiet = false
    sweep_limit = share_of_work(budget, sweep_limit)
    start, more_outlived = expire(slot, start, now_ms, tonumber(ARGV[at]), max_retries, sweep_limit, totals)
    budget.work = budget.work - (totals.ttl_expired or 0)
  end
  if budget.work <= budget.most / 2 then
    limit = math.min(limit, 250)
  end
  if slot.held then
    rules.room.left = rules.room.left - math.max(0, bytes_before - budget.bytes)
  end
  if not slot.quiet then
    -- @include dead
    trim_dead(slot, now_ms, rules.max_dead_age, rules.max_dead, totals)
  end

  local stamp = now_ms
  if clock.odd or now_ms <= clock.last then
    -- @include clock
    stamp = next_stamp(slot, clock, now_ms)
  end
  local items, resume, searched, alike = {}, 0, false, nil
  slot.retried = slot.held and redis.call('ZCARD', slot.retry) > 0
  if more_outlived and not paused and limit > 0 and has_room(slot) then
    -- @include take
    items, resume = take_unexpired(slot, limit, start, tonumber(ARGV[at]), now_ms, stamp, max_retries, totals)
  elseif not paused and has_room(slot) then
    items, resume, searched, alike = take_due(slot, highest_first, limit, start, now_ms, stamp, max_retries, totals,
      slot.quiet and peek or nil) -- else what it saw may have changed
  end
  local bodies, as_measured = {}, at == turn.at + 3 and swept == 0 and not totals.ttl_expired
  local bodied = sizes.body > 0 and (as_measured or redis.call('HLEN', slot.body) > 0)
  if #items > 0 and (slot.born or slot.held or bodied) then
    local names = {}
    for i = 1, #items, 2 do
      names[#names + 1] = items[i]
    end
    -- @include bodies
    bodies = read_bodies(slot, names)
    if slot.held then
      -- @include merge_fold
      bodies = hold(slot, names, bodies)
    end
    if slot.born then
      redis.call('ZREM', slot.born, unpack(names))
    end
  end
  if #bodies == 0 and #slot.assumed > 0 then -- nothing of what was assumed is handed over
    slot.room.left = slot.room.left + slot.weight * slot.body_bound * #slot.assumed
  end
  if #items > 0 or clock.changed then
    local fields = fields_of(totals, stored)
    note_bound(slot, slot.refolded and -1 or sizes.body, fields)
    note_stamp(slot, clock, #items > 0 and stamp or nil, now_ms, fields)
  end
  write_totals(slot.meta, totals)
  slot.claimed = #items > 0 and stamp * 1000

  local due = now_ms
  if not more and not more_outlived and resume == 0 then
    local backlog = paused and 'none' or searched and 'later' or 'all'
    due = next_due(slot, highest_first, backlog, now_ms, clock)
  end
  if back > 0 and turn.limit <= 0 then
    hint(rules.publish, 'wake{' .. slot.store .. '}', '0')
  end
  return { whole(now_ms), whole(due), whole(resume), whole(swept), stale, items, bodies, unmatched, whole(stamp),
    alike or '', nacked }
end
