-- What ends a delivery of a group: acks and nacks, by compare-and-set on holder and delivery count; and whole claims, if
-- nothing was taken from any since their stamp.
-- @include totals, redis, stream_ids, stream_groups

-- An entry was trimmed or deleted while a group still had it: nothing is left to deliver. It goes out of the pending
-- list, where it would stick for ever, and into the account of what was lost. Redis 7 drops it from the list by itself.
local function lose_entry(slot, id, totals, lost)
  redis.call('XACK', slot.store, slot.group, id)
  redis.call('ZREM', slot.retry, padded_id(id))
  redis.call('HDEL', slot.error, id)
  tally(totals, 'lost', 1)
  lost[#lost + 1] = id
end

-- A delivery has used up its retries, or was rejected: out of the group's pending list and into its dead, with its last
-- `failure` as the reason, and its fields, since the stream may be trimmed before anybody looks. Returns how many
-- bytes it has moved.
local function bury_entry(slot, id, failure, attempts, now_ms, totals, lost)
  local found = redis.call('XRANGE', slot.store, id, id, 'COUNT', 1)[1]
  if not found then
    lose_entry(slot, id, totals, lost)
    return 0
  end
  redis.call('ZADD', slot.dead, string.format('%.0f', now_ms), id)
  failure.attempts = attempts
  redis.call('HSET', slot.reason, id, cjson.encode(failure))
  local packed = cmsgpack.pack(found[2])
  redis.call('HSET', slot.dead_body, id, packed)
  redis.call('XACK', slot.store, slot.group, id)
  redis.call('ZREM', slot.retry, padded_id(id))
  redis.call('HDEL', slot.error, id)
  tally(totals, 'buried', 1)
  return #packed
end

-- Sets a pending entry aside until due_ms (0: at once, before all others): it stays in the group's pending list, in the
-- name of `(waiting)`, which no consumer can have, with this delivery count.
local function park(slot, id, deliveries, due_ms, totals, lost)
  redis.call('ZADD', slot.retry, string.format('%.0f', due_ms), padded_id(id))
  local kept =
    redis.call('XCLAIM', slot.store, slot.group, '(waiting)', '0', id, 'IDLE', '0', 'RETRYCOUNT', whole(deliveries),
      'JUSTID')
  if #kept == 0 then
    lose_entry(slot, id, totals, lost)
  end
end

-- Nacks and acks of a group, in the form of settle_nacks and settle_acks: the id stands for the content, the delivery
-- score (see holder_of) for the claim score. Compare-and-set on holder and delivery count: the others go into `stale`
-- and nothing changes for them. `slot.plain`: no entry of the group has failed before. Notes in `slot.left` the names
-- of claims that it takes from. Once the dead have used up the bytes of `slot.budget`, 4 MiB without one, the nacks
-- behind them are left as they are. Returns how many came back that are due at once, where ARGV goes on, and how many
-- nacks were looked at.
local function settle_entries(slot, at, now_ms, max_retries, totals, stale, lost)
  local last, back, nacked, budget = at + 6 * tonumber(ARGV[at]), 0, 0, slot.budget or { bytes = 4194304 }
  if last > at then
    -- @include failures, stream_settlements
    for i = at + 1, last, 6 do
      if budget.bytes <= 0 then
        break
      end
      nacked = nacked + 1
      local id, verb, number = ARGV[i], ARGV[i + 2], tonumber(ARGV[i + 3])
      local holder, deliveries, own = holder_of(slot, tonumber(ARGV[i + 1]))
      local row = redis.call('XPENDING', slot.store, slot.group, id, id, 1)[1]
      if own then
        slot.left[holder] = true
      end
      if not row or row[2] ~= holder or row[4] ~= deliveries then
        stale[#stale + 1] = id
      elseif verb == 'release' then
        park(slot, id, deliveries - 1, 0, totals, lost)
        tally(totals, 'released', 1)
        back = back + 1
      else
        local failure = failure_of(slot, id, deliveries == 1, now_ms, ARGV[i + 4], ARGV[i + 5])
        if verb == 'bury' or (verb == 'retry' and deliveries > max_retries) then
          budget.bytes = budget.bytes - bury_entry(slot, id, failure, deliveries, now_ms, totals, lost)
        else
          record_failure(slot, id, failure)
          local counted = verb == 'spare' and deliveries - 1 or deliveries
          park(slot, id, counted, number > 0 and now_ms + number or 0, totals, lost)
          tally(totals, 'retried', 1)
          back = back + (number > 0 and 0 or 1)
        end
      end
    end
  end
  at = last + 2
  local has_errors = not slot.plain and redis.call('HLEN', slot.error) > 0
  for _ = 1, tonumber(ARGV[last + 1]) do
    local holder, deliveries, own = holder_of(slot, tonumber(ARGV[at]))
    local stop = at + 1 + tonumber(ARGV[at + 1])
    if own then
      slot.left[holder] = true
    end
    for first = at + 2, stop, 1000 do
      local ids, mine = { unpack(ARGV, first, math.min(first + 999, stop)) }, {}
      local counts = held_counts(slot, ids, holder)
      for _, id in ipairs(ids) do
        local list = counts[id] == deliveries and mine or stale
        list[#list + 1] = id
      end
      if #mine > 0 then
        tally(totals, 'acked', redis.call('XACK', slot.store, slot.group, unpack(mine)))
        if has_errors then
          redis.call('HDEL', slot.error, unpack(mine))
        end
      end
    end
    at = stop + 1
  end
  return back, at, nacked
end

-- Acks claims that read new entries in a name of their own, all of each: from ARGV[at] on how many, then score and
-- number of entries of each. `taken` is the stamp of the last time at which deliveries were taken from their holders.
-- Returns the scores of those that have to be acked by name: some of their entries may belong to somebody else by now.
local function settle_whole_reads(slot, at, taken, totals)
  local unmatched = {}
  for i = at + 1, at + 2 * tonumber(ARGV[at]), 2 do
    local name, _, stamp = holder_of(slot, tonumber(ARGV[i]))
    local acked = stamp and stamp > taken and redis.call('XGROUP', 'DELCONSUMER', slot.store, slot.group, name) or 0
    if acked == 0 then
      unmatched[#unmatched + 1] = ARGV[i]
    end
    tally(totals, 'acked', acked)
  end
  return unmatched
end
