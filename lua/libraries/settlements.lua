-- What ends a delivery: acks, nacks, releases and whole claims, by compare-and-set on the claim score. An ack removes
-- the content from `prepare`, its failure from `error`, and its value from `held` or its body from `body`, the body not
-- where a fresh copy is in store. A whole claim is in `prepare` alone, or is named by its contents. Failures are written
-- to `error` (failures); what was counted goes to `meta` at the end of the script (write_totals). The same stands in
-- write_brief_acks for a claim of few messages, in settle_entries for a group, in ack_chunk for a query of Spark.
-- Invariant: until it is acked or leaves the backlog by hand, a content is in one or several of store, prepare, retry
-- and dead; a move writes the new place first.
-- @include totals, redis, failures, bodies

-- The lease of a worker is over that had taken what a query of Spark has committed: that is done, and counts as acked.
local function end_committed(slot, content, totals)
  tally(totals, 'acked', 1)
  redis.call('HDEL', slot.error, content)
  if slot.held then
    redis.call('HDEL', slot.held, content)
  else
    drop_bodies(slot, { content })
  end
  redis.call('ZREM', slot.prepare, content)
end

-- A message goes back to store, with this score as text. A fresh copy that was sent since stands as it is, with its
-- own time or priority and all its retries: the message merges into it, its last failure and, where the topic merges,
-- its value with it (fold_back). Returns whether there was one, what that has cost, and whether it is due sooner by it.
local function return_to_store(slot, content, score, now_ms, totals)
  local fresh, cost, sooner = redis.call('ZADD', slot.store, 'NX', score, content) == 0, 0, false
  if slot.held then
    -- @include merge_fold
    cost, sooner = fold_back(slot, content, fresh, now_ms)
  end
  if fresh then
    tally(totals, 'merged', 1)
    keep_failure(slot, content)
  end
  return fresh, cost, sooner
end

-- A claimed message goes back: to store with its retries left as score, or to retry until due_ms (0: at once), unless a
-- fresh copy is in store. What waits leaves its value in `held`. Returns what that has cost, and whether the fresh copy
-- is due sooner by it.
local function roll_back(slot, content, retries_left, due_ms, now_ms, totals)
  local fresh, cost, sooner = false, 0, false
  if due_ms > 0 and not redis.call('ZSCORE', slot.store, content) then
    redis.call('ZADD', slot.retry, whole(math.ceil(due_ms / 1000) * 1000 + retries_left), content)
  else
    fresh, cost, sooner = return_to_store(slot, content, whole(retries_left), now_ms, totals)
  end
  tally(totals, 'retried', fresh and 0 or 1)
  redis.call('ZREM', slot.prepare, content)
  return cost, sooner
end

-- Acks: ARGV[at] groups, each a claim score, a number, and so many contents. Compare-and-set on the claim score: the
-- others go into `stale` and nothing changes for them. `bodies`, `errors`: how many the slot had before it was settled.
-- Returns the position after the last group.
local function settle_acks(slot, at, bodies, errors, totals, stale)
  local groups = tonumber(ARGV[at])
  at = at + 1
  if groups == 0 then
    return at
  end
  -- @include bodies
  for _ = 1, groups do
    local claim_score, last = ARGV[at], at + 1 + tonumber(ARGV[at + 1])
    for first = at + 2, last, 1000 do
      local contents = { unpack(ARGV, first, math.min(first + 999, last)) }
      local scores = redis.call('ZMSCORE', slot.prepare, unpack(contents))
      local mine = contents
      for i = 1, #scores do
        if scores[i] ~= claim_score then
          mine = {}
          break
        end
      end
      if mine ~= contents then
        for i = 1, #scores do
          local list = scores[i] == claim_score and mine or stale
          list[#list + 1] = contents[i]
        end
      end
      if #mine > 0 then
        tally(totals, 'acked', redis.call('ZREM', slot.prepare, unpack(mine)))
        if errors > 0 then
          redis.call('HDEL', slot.error, unpack(mine))
        end
        if slot.held then
          redis.call('HDEL', slot.held, unpack(mine))
        elseif bodies > 0 then
          drop_bodies(slot, mine)
        end
      end
    end
    at = last + 1
  end
  return at
end

-- Nacks: ARGV[at] messages, each six values: content, claim score, verb, number, error type (with_attempt says what may
-- follow it), error message. Verbs:
-- `retry` (number = delay in ms, 0 for at once), `spare` (as `retry`, but a retry uses up no retry, and the last one
-- does not die), `bury`, `release` (never begun: back as it was, number = its store score, no retry used up; a time to
-- live that `slot.born` keeps begins anew). Compare-and-set on the claim score.
-- The bodies that move along are taken off `slot.budget`; once that is used up, the rest is left as it is. Returns the
-- position after the last one, how many are due by it, and how many were looked at.
local function settle_nacks(slot, at, now_ms, max_retries, totals, stale)
  local last = at + 6 * tonumber(ARGV[at])
  local back = 0
  if last == at then
    return last + 1, back, 0
  end
  -- @include settlements, dead, scores, failures
  local budget, done = slot.budget, 0
  for i = at + 1, last, 6 do
    if budget.bytes <= 0 then
      break
    end
    done = done + 1
    local content, claim_score, verb, number = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
    if redis.call('ZSCORE', slot.prepare, content) ~= claim_score then
      stale[#stale + 1] = content
    elseif verb == 'release' and read_failure(redis.call('HGET', slot.error, content)).committed then
      end_committed(slot, content, totals)
    elseif verb == 'release' then
      local fresh, cost = return_to_store(slot, content, ARGV[i + 3], now_ms, totals)
      budget.bytes = budget.bytes - cost
      if slot.born and not fresh then
        redis.call('ZADD', slot.born, whole(now_ms), content)
      end
      tally(totals, 'released', 1)
      redis.call('ZREM', slot.prepare, content)
      back = back + 1
    else
      local left = left_of(tonumber(claim_score), max_retries)
      local failure = failure_of(slot, content, left == max_retries, now_ms, ARGV[i + 4], ARGV[i + 5], totals)
      if verb == 'bury' or (verb == 'retry' and left == 0) then
        budget.bytes = budget.bytes - bury(slot, content, failure, max_retries - left + 1, now_ms, totals)
      else
        record_failure(slot, content, failure)
        if verb == 'spare' then
          left = math.max(1, math.min(left + 1, max_retries))
        end
        local due_ms = number > 0 and now_ms + number or 0
        local cost, sooner = roll_back(slot, content, left, due_ms, now_ms, totals)
        budget.bytes = budget.bytes - cost
        back = back + ((number == 0 or sooner) and 1 or 0)
      end
    end
  end
  return last + 1, back, done
end

-- Whole claims: ARGV[at] of them, each a claim score and how many deliveries were claimed with it, all of which are
-- acked without their names. No two claims or renewals of a slot have a score in common, so that what has it now is
-- what is left of this one: if just so many have it, nothing was taken away. Else, or where failures or bodies have to
-- go with them (not `plain`), nothing changes and the score goes into `unmatched`: the caller then names them all.
-- Returns the position after the last one.
local function settle_whole(slot, at, plain, totals, unmatched)
  local last = at + 2 * tonumber(ARGV[at])
  for i = at + 1, last, 2 do
    local claim_score = ARGV[i]
    if not plain or redis.call('ZCOUNT', slot.prepare, claim_score, claim_score) ~= tonumber(ARGV[i + 1]) then
      unmatched[#unmatched + 1] = claim_score
    else
      tally(totals, 'acked', redis.call('ZREMRANGEBYSCORE', slot.prepare, claim_score, claim_score))
    end
  end
  return last + 1
end
