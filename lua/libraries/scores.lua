-- Scores in store: a due time in ms, or a priority with its age; one up to `max_retries` is a rollback, with the
-- retries left. In prepare and retry the last three digits are the retries left. Also says when a slot is next due:
-- next_due.
-- @include clock, redis

-- The retries left that a claim or retry score tells, 0 to max_retries. A score that no script has written, a
-- fraction or an infinite one, tells something in these bounds, too: what has it is a message like any other.
local function left_of(score, max_retries)
  local left = math.floor(score % 1000)
  return left <= max_retries and left or max_retries -- not a number: neither more nor less
end

-- The age mark of a message that is sent at `now_ms`: the time in whole `unit_ms` since 2025-01-01. The last one that
-- is below `scale` stands for all later times.
local function age_mark(scale, unit_ms, now_ms)
  return math.max(0, math.min(math.floor((now_ms - 1735689600000) / unit_ms), scale - 1))
end

-- The score of a message that is sent at `now_ms` to a PRIORITY topic where the oldest of equal priorities is first:
-- priority x `scale`, a power of two, plus what is left of `scale` - 1 without the age mark. Scores below `scale` are
-- of rollbacks.
local function aged(priority, scale, unit_ms, now_ms)
  return priority * scale + scale - 1 - age_mark(scale, unit_ms, now_ms)
end

-- The score of a message that is in store and gets the priority of the score `fresh`: it keeps its own age; see aged.
local function with_own_age(stored, fresh, scale)
  if stored < scale then
    return fresh
  end
  return fresh - fresh % scale + stored % scale
end

-- The refusal of times of which `lowest` is the earliest, where that has passed; else nil. Nothing is due in the past,
-- where it would be delivered before all others.
local function past_refusal(lowest, now_ms)
  if lowest <= now_ms then
    return redis.error_reply('RMQ_PAST ' .. whole(now_ms) .. ' ' .. whole(lowest))
  end
end

-- The store score that a rescheduling asks for. `kind`: `after` (value = ms from now), `at` (value = epoch ms, ahead of
-- now), `priority` (value = the priority), on a topic with ages those of `scale` and `unit_ms`, else 1 and 1. Returns
-- the score, or nil and a refusal.
local function new_score(kind, value, now_ms, scale, unit_ms)
  if kind == 'after' then
    return now_ms + value
  end
  local refusal = kind == 'at' and past_refusal(value, now_ms)
  if refusal then
    return nil, refusal
  end
  return scale > 1 and aged(value, scale, unit_ms, now_ms) or value
end

-- When a slot next has something to do, epoch ms, 0 for never: a message due, a retry due, a lease running out.
-- `backlog` says which messages in store count: `all`, `later` (all that are due now are in flight) or `none`. What
-- the caller knows stands in `slot`: `upcoming`, `first`, `oldest` and `claimed`.
local function next_due(slot, highest_first, backlog, now_ms, clock)
  local soonest = nil
  if backlog == 'later' and slot.upcoming ~= nil then
    soonest = not highest_first and slot.upcoming or nil
  elseif backlog == 'all' and slot.first ~= nil then
    if slot.first and highest_first then
      return now_ms
    end
    soonest = slot.first or nil
  elseif backlog ~= 'none' and not highest_first then
    local from = backlog == 'later' and '(' .. whole(now_ms) or '-inf'
    soonest = tonumber(redis.call('ZRANGEBYSCORE', slot.store, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
  elseif backlog == 'all' and redis.call('ZCARD', slot.store) > 0 then
    return now_ms
  end
  local retry = not slot.quiet and redis.call('ZRANGE', slot.retry, 0, 0, 'WITHSCORES')[2]
  if retry then
    local due = math.floor(tonumber(retry) / 1000) * 1000
    soonest = math.min(due, soonest or due)
  end
  local claim = slot.oldest or slot.claimed
  if slot.oldest == nil then
    claim = tonumber(redis.call('ZRANGE', slot.prepare, 0, 0, 'WITHSCORES')[2])
  end
  if claim then -- a clock that was set back stands still until a claim notes it
    local ends = clock.changed and now_ms or lease_end(tonumber(claim), clock, now_ms)
    soonest = math.min(ends, soonest or ends)
  end
  return soonest and math.max(1, math.min(soonest, 9007199254740991)) or 0
end
