-- Dead messages: `dead` content -> time of death, `reason` and `dead_body`. Claims, and settlements with nacks,
-- keep them within number and age, at most 250 a slot (trim_dead). Who tells of the dead takes turns: turn_to_tell.
-- @include fence, totals, redis, failures

-- A message enters `dead`, at `now` (text), with its `reason` and its body, false for none. One of its content that is
-- there already merges with it. Returns the bytes of the body, or where the topic merges what its value has cost (see
-- fold_cost).
local function enter_dead(slot, content, body, reason, now, totals)
  local again = redis.call('ZADD', slot.dead, now, content) == 0
  tally(totals, 'merged', again and 1 or 0)
  redis.call('HSET', slot.reason, content, reason)
  local cost = body and #body or 0
  if again and slot.held then
    -- @include merge_fold
    body, cost = fold_dead(slot, content, body)
  elseif slot.held then
    -- @include merge_record
    cost = move_cost(cost)
  end
  if body then
    redis.call('HSET', slot.dead_body, content, body)
  else
    redis.call('HDEL', slot.dead_body, content)
  end
  return cost
end

-- A claimed message has used up its retries, or was rejected: prepare -> dead, with its last `failure` as the reason,
-- and its body. Beside a fresh copy in store nothing is left to bury: it is counted, and the fresh copy has all its
-- retries. Where the topic merges, it has a value of its own, and dies with that. Returns the bytes of the body that it
-- has moved, or what its value has cost (see fold_cost).
local function bury(slot, content, failure, attempts, now_ms, totals)
  if not slot.held and redis.call('ZSCORE', slot.store, content) then
    tally(totals, 'exhausted', 1)
    tally(totals, 'merged', 1)
    record_failure(slot, content, failure)
    redis.call('ZREM', slot.prepare, content)
    return 0
  end
  tally(totals, 'buried', 1)
  failure.attempts = attempts
  local bodies = slot.held or slot.body
  local body = redis.call('HGET', bodies, content)
  local cost = enter_dead(slot, content, body, cjson.encode(failure), whole(now_ms), totals)
  if body then
    redis.call('HDEL', bodies, content)
  end
  redis.call('HDEL', slot.error, content)
  redis.call('ZREM', slot.prepare, content)
  return cost
end

-- Keeps the dead within their bounds: at most max_age_ms old, at most max_count of them; oldest first, up to 250
-- a call, 100 where they have bodies.
local function trim_dead(slot, now_ms, max_age_ms, max_count, totals)
  local before = '(' .. string.format('%.0f', now_ms - max_age_ms)
  local doomed = redis.call('ZRANGEBYSCORE', slot.dead, '-inf', before, 'LIMIT', 0, 250)
  local excess = math.min(redis.call('ZCARD', slot.dead) - max_count, 250)
  if excess > #doomed then
    doomed = redis.call('ZRANGE', slot.dead, 0, excess - 1)
  end
  if #doomed > 100 and redis.call('HLEN', slot.dead_body) > 0 then
    doomed = { unpack(doomed, 1, 100) } -- to free large ones takes its time
  end
  if #doomed > 0 then
    tally(totals, 'trimmed', redis.call('ZREM', slot.dead, unpack(doomed)))
    redis.call('HDEL', slot.reason, unpack(doomed))
    redis.call('HDEL', slot.dead_body, unpack(doomed))
  end
end

-- Takes or keeps the turn to tell of the dead under a name, which one holder at a time has for so long, and says where
-- the untold begin. Told is whoever died before `since`, and of those who died in that ms all up to `after`. Only those
-- are told who died a second ago or earlier: Redis' clock may be set back by less, and nobody is passed over. At a
-- first look nobody has to be told who was dead before. Returns the end of what may be told, ms, and the rank of the
-- first; nothing where another one has the turn.
local function turn_to_tell(slot, turn, now_ms)
  local state, field = slot.state, 'told:' .. turn.name
  local holder, _, told, held = read_lock(state, field, now_ms, 172800000)
  if held and holder ~= turn.holder and (told or 0) <= now_ms then -- else the clock was ahead when that was noted
    return nil
  end
  local ripe = now_ms - 1000
  local since = math.min(math.max(turn.since, told or ripe), ripe)
  redis.call('ZREMRANGEBYRANK', slot.dead, 1, 0) -- removes nothing: allowed at maxmemory, after which writes pass
  write_lock(state, field, turn.holder, now_ms + turn.hold_ms, since)
  local start = redis.call('ZCOUNT', slot.dead, '-inf', '(' .. whole(since))
  if turn.after ~= '' and tonumber(redis.call('ZSCORE', slot.dead, turn.after) or -1) == since then
    start = redis.call('ZRANK', slot.dead, turn.after) + 1
  end
  return ripe, start
end
