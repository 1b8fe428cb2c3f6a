-- Sends to the store of a slot: content -> score, with bodies, within the bound of the backlog. Invariant: a content
-- is in store once; a batch is refused as a whole, or each message by itself, before anything is written.
-- @include totals, redis, bodies, scores

-- Reads `number` messages of ARGV, as all that sends takes them: `args` has from `at` on score and content of each,
-- then index (from 1) and body of those that have one, up to `last`. ARGV has them so where each has a value (`values`
-- is their number), else one value for all, and then the contents alone. With `now_ms` the values are ms from then.
local function read_batch(at, last, number, values, now_ms)
  local value = ARGV[at]
  local score = now_ms and whole(now_ms + value) or value
  if values == '1' and number > 1 then
    local args, place = {}, 1
    for i = at + 1, at + number do
      args[place], args[place + 1] = score, ARGV[i]
      place = place + 2
    end
    for i = at + number + 1, last do
      args[place] = ARGV[i]
      place = place + 1
    end
    return { args = args, at = 1, last = place - 1, number = number }
  end
  if now_ms then
    for i = at, at + 2 * number - 1, 2 do
      if ARGV[i] ~= value then
        value = ARGV[i]
        score = whole(now_ms + value)
      end
      ARGV[i] = score
    end
  end
  return { args = ARGV, at = at, last = last, number = number }
end

-- Turns the delays among fixed times into times, in ARGV: a value below 0 is the number of ms from now, negated. The
-- values stand at ARGV[at] and at each `step` after it. Returns the earliest time.
local function due_times(at, values, step, now_ms)
  local lowest, value, due = math.huge, nil, nil
  for i = at, at + (values - 1) * step, step do
    if ARGV[i] ~= value then
      value = ARGV[i]
      due = value
      local due_ms = tonumber(value)
      if due_ms < 0 then
        due_ms = now_ms - due_ms
        due = whole(due_ms)
      end
      lowest = math.min(lowest, due_ms)
    end
    ARGV[i] = due
  end
  return lowest
end

-- Turns the priorities of a batch (see read_batch) into scores with ages, and has the slot's messages keep their own.
-- `made`: the age mark with which the sender has made scores of them, in the hope that it is still that one when they
-- arrive; nil if they are priorities. To make digits of numbers costs more than to store them: so where the mark is
-- right, nothing is left to do, and else it is taken out of each score.
local function age_messages(slot, scale, unit_ms, now_ms, batch, made)
  slot.scale = scale
  local mark = age_mark(scale, unit_ms, now_ms)
  if made == mark then
    return
  end
  local factor, plus = scale, scale - 1 - mark
  if made then
    factor, plus = 1, made - mark
  end
  local scores = {} -- a batch may have few priorities
  local messages = batch.args
  for i = batch.at, batch.at + 2 * batch.number - 1, 2 do
    local value = messages[i]
    local score = scores[value]
    if not score then
      score = whole(tonumber(value) * factor + plus)
      scores[value] = score
    end
    messages[i] = score
  end
end

-- Whether a batch (see read_batch) fits into the slot's share of the backlog; those that merge need no room, even where
-- rollbacks have filled it beyond its bound. Returns a refusal or false.
local function check_backlog(store, size, max_backlog, batch)
  local messages, at, number = batch.args, batch.at, batch.number
  local seen, fresh = {}, 0
  for i = at + 1, at + 2 * number, 2 do
    if not seen[messages[i]] and not redis.call('ZSCORE', store, messages[i]) then
      fresh = fresh + 1
    end
    seen[messages[i]] = true
  end
  if fresh > 0 and size + fresh > max_backlog then
    return redis.error_reply('RMQ_FULL ' .. size .. ' ' .. max_backlog)
  end
  return false
end

local LONG = string.rep('-', 65)

-- Lets a store that would be a list begin as a skiplist: see begin_skiplist; the score is '-inf'. `names`: holds the
-- `number` contents that are to be added, from `first` on, each so many `step` behind the one before.
local function begin_store(store, names, first, step, number)
  if number < 32 or redis.call('ZCARD', store) > 128 then
    return false
  end
  for i = first, first + step * (number - 1), step do
    if names[i] == LONG then
      return false
    end
  end
  return begin_skiplist(store, number, '-inf', LONG)
end

-- Gives those of the messages `messages[from]` to `messages[to]` (score, content, ...) that are in store their new
-- priorities; they keep their ages.
local function keep_ages(slot, messages, from, to)
  local names, fresh, changed = {}, {}, {}
  for i = from, to, 2 do
    local name = messages[i + 1]
    if not fresh[name] then
      names[#names + 1] = name
    end
    fresh[name] = messages[i] -- of a content that comes twice, the last one decides
  end
  for i, stored in ipairs(redis.call('ZMSCORE', slot.store, unpack(names))) do
    local score = whole(with_own_age(tonumber(stored), tonumber(fresh[names[i]]), slot.scale))
    if score ~= stored then
      changed[#changed + 1] = score
      changed[#changed + 1] = names[i]
    end
  end
  if #changed > 0 then
    redis.call('ZADD', slot.store, unpack(changed))
  end
end

-- Drops what would be delivered last until store is within its bound: the lowest priorities, the latest due times; up
-- to 1,000 a call, and up to 32 MiB of bodies. What was delivered before is left to its retries. Returns how many were
-- dropped.
local function drop_excess(slot, highest_first, max_backlog, max_retries, totals)
  local excess = math.min(redis.call('ZCARD', slot.store) - max_backlog, 1000)
  if excess <= 0 then
    return 0
  end
  local above = '(' .. max_retries
  local last
  if highest_first then
    last = redis.call('ZRANGEBYSCORE', slot.store, above, '+inf', 'LIMIT', 0, excess)
  else
    last = redis.call('ZREVRANGEBYSCORE', slot.store, '+inf', above, 'LIMIT', 0, excess)
  end
  local doomed, left_bytes = last, 33554432
  if redis.call('HLEN', slot.body) > 0 then
    doomed = {}
    for i, content in ipairs(last) do
      if left_bytes <= 0 then
        break
      end
      doomed[i] = content
      left_bytes = left_bytes - redis.call('HSTRLEN', slot.body, content)
    end
  end
  if #doomed > 0 then
    redis.call('ZREM', slot.store, unpack(doomed))
    forget_unused(slot, doomed)
    if slot.born then
      redis.call('ZREM', slot.born, unpack(doomed))
    end
  end
  tally(totals, 'dropped', #doomed)
  return #doomed
end

-- Adds a batch (see read_batch) to store; `keep_first`: present ones stay as they are; with `slot.scale` these keep
-- their ages. Returns how many were new. One command per 1,000 messages: the server's cheapest path.
local function store_batch(slot, keep_first, batch)
  local new, messages, at, number = 0, batch.args, batch.at, batch.number
  for first = at, at + 2 * number - 1, 2000 do
    local last = math.min(first + 1999, at + 2 * number - 1)
    if keep_first then
      new = new + redis.call('ZADD', slot.store, 'NX', unpack(messages, first, last))
    elseif slot.scale then
      local added = redis.call('ZADD', slot.store, 'NX', unpack(messages, first, last))
      if added < (last - first + 1) / 2 then
        -- @include sends
        keep_ages(slot, messages, first, last)
      end
      new = new + added
    else
      new = new + redis.call('ZADD', slot.store, unpack(messages, first, last))
    end
  end
  return new
end

-- Whether the body of a message that merges is the one that stands from now on.
local function replaces(hash, content, body)
  if not only_trace(body, 1) then
    return true
  end
  local stored = redis.call('HGET', hash, content)
  return not stored or only_trace(stored, 1)
end

-- Like store_batch, one message at a time, where outcomes are asked for or the slot has bodies: the body goes with the
-- entry. Returns how many were new, and per message '1' for new or '0' for merged. `keep_first` is about scores: of the
-- bodies the newest stands, and a message without one leaves the one that is there. A body above 4 KiB ends what
-- `body_bound` of meta promises to claims.
local function store_each(slot, keep_first, batch)
  local store, body, messages, at, number = slot.store, slot.body, batch.args, batch.at, batch.number
  local bodies, largest = {}, 0
  for i = at + 2 * number, batch.last, 2 do
    bodies[tonumber(messages[i])] = messages[i + 1]
    largest = math.max(largest, #messages[i + 1])
  end
  if largest > 4096 then
    redis.call('HDEL', slot.meta, 'body_bound')
  end
  local had_bodies = redis.call('HLEN', body) > 0
  local new, outcomes = 0, {}
  for i = 1, number do
    local score, content = messages[at + 2 * i - 2], messages[at + 2 * i - 1]
    local added
    if keep_first then
      added = redis.call('ZADD', store, 'NX', score, content)
    else
      local stored = slot.scale and redis.call('ZSCORE', store, content)
      if stored then
        score = whole(with_own_age(tonumber(stored), tonumber(score), slot.scale))
      end
      added = redis.call('ZADD', store, score, content)
    end
    new = new + added
    outcomes[i] = added
    if bodies[i] and (added == 1 or replaces(body, content, bodies[i])) then
      redis.call('HSET', body, content, bodies[i])
      had_bodies = true
    elseif added == 1 and had_bodies then
      redis.call('HDEL', body, content) -- of an earlier message, in flight or waiting
    end
  end
  return new, table.concat(outcomes)
end

-- Stores a batch, see read_batch: all that sends share, from the backlog's bound to the totals. Its scores are absolute
-- by now. `rules`: `publish`, `max_backlog`, `detailed` and `keep_first`, see `send` and store_each. `lowest`: the
-- earliest due time of the batch as text, '0' for at once. Returns the reply. Each command costs a single send as much
-- as storing it: what is not there is not asked for, and the first write is also the check of its key.
-- Consumers get a hint where nothing was due as early as `lowest`. A due one may be hidden by its twin in flight, and
-- while few are in store, all of them: then only a later one counts, or none.
local function send_batch(slot, rules, batch, lowest, now_ms)
  local in_flight, had_bodies, number, keep_first = 0, false, batch.number, rules.keep_first
  if redis.call('EXISTS', slot.prepare, slot.body) > 0 then
    in_flight, had_bodies = redis.call('ZCARD', slot.prepare), redis.call('HLEN', slot.body) > 0
  end
  local waited_for = 0
  if lowest ~= '0' then
    waited_for = redis.call('ZCOUNT', slot.store, in_flight > 0 and '(' .. whole(now_ms) or '-inf', lowest)
  end
  if in_flight > 0 or rules.max_backlog > 0 or lowest == '0' then
    local size = redis.call('ZCARD', slot.store)
    if size <= in_flight then
      waited_for = 0
    end
    if rules.max_backlog > 0 and size + number > rules.max_backlog then
      -- @include sends
      local refusal = check_backlog(slot.store, size, rules.max_backlog, batch)
      if refusal then
        return refusal
      end
    end
  end
  local accepted = redis.call('HINCRBY', slot.meta, 'accepted', whole(number))
  local with_bodies = batch.last >= batch.at + 2 * number
  if with_bodies and accepted == number and not had_bodies then
    redis.call('HSET', slot.meta, 'body_bound', '4096') -- the slot's first messages: no body is older
  end
  local finish, new
  local outcomes = ''
  if number >= 32 then
    -- @include sends
    finish = begin_store(slot.store, batch.args, batch.at + 1, 2, number) and end_skiplist
  end
  if rules.detailed or had_bodies or with_bodies then
    -- @include sends
    new, outcomes = store_each(slot, keep_first, batch)
  else
    new = store_batch(slot, keep_first, batch)
  end
  if finish then
    finish(slot.store, '-inf')
  end
  if new < number then
    redis.call('HINCRBY', slot.meta, 'merged', whole(number - new))
  end
  if waited_for == 0 and (new > 0 or not keep_first) then
    hint(rules.publish, slot.wake, lowest)
  end
  return { new, outcomes }
end

-- The messages whose times lie ahead, the earliest of their times, and by place in the batch their places now.
local function those_ahead(batch, now_ms)
  local messages, ahead, left, lowest, places = batch.args, {}, 0, math.huge, {}
  for i = 1, batch.number do
    local at = batch.at + 2 * i - 2
    local due_ms = tonumber(messages[at])
    if due_ms > now_ms then
      left = left + 1
      places[i] = left
      ahead[2 * left - 1], ahead[2 * left] = messages[at], messages[at + 1]
      lowest = math.min(lowest, due_ms)
    end
  end
  for i = batch.at + 2 * batch.number, batch.last, 2 do
    local place = places[tonumber(messages[i])]
    if place then
      ahead[#ahead + 1], ahead[#ahead + 2] = place, messages[i + 1]
    end
  end
  return { args = ahead, at = 1, last = #ahead, number = left }, lowest, places
end

-- The outcomes of all messages of a send, `number` of them, of which some were taken out since their time has passed:
-- 4 for these, `outcomes` (a digit each) for the others, whose places there `places` has. None from the first one on
-- that `outcomes` lacks.
local function with_passed(outcomes, places, number)
  local all = {}
  for i = 1, number do
    local outcome = places[i] and string.sub(outcomes, places[i], places[i]) or '4'
    if outcome == '' then
      break
    end
    all[i] = outcome
  end
  return table.concat(all)
end

-- As `send_batch`, for fixed times, which have to lie ahead: `lowest` is the earliest. With `rules.each` those that
-- have passed are refused by themselves: their outcome is 4, and nothing comes of them. If none lies ahead, or without
-- `rules.each`, the batch is refused.
local function send_ahead(slot, rules, batch, lowest, now_ms)
  local refusal = past_refusal(lowest, now_ms)
  if not refusal then
    return send_batch(slot, rules, batch, whole(lowest), now_ms)
  end
  local ahead, first, places = those_ahead(batch, now_ms)
  if ahead.number == 0 or not rules.each then
    return refusal
  end
  local detailed = rules.detailed
  rules.detailed = true
  local reply = send_batch(slot, rules, ahead, whole(first), now_ms)
  rules.detailed = detailed
  if not reply.err then
    reply[2] = with_passed(reply[2], places, batch.number)
  end
  return reply
end

-- As `send_batch` or `send_ahead`, to a slot with limits (see `send`), whose keys stand behind KEYS[base]: drops what
-- is too much, and notes when messages with a time to live were sent.
local function send_limited(slot, rules, batch, base, unit, lowest, now_ms)
  local drop, max_retries, ttl = string.match(ARGV[6], '^(%d) (%d+) (%d)$')
  local max_backlog, born = rules.max_backlog, KEYS[base + 8]
  slot.retry, slot.error = KEYS[base + 6], KEYS[base + 7]
  redis.call('ZCARD', slot.retry)
  redis.call('HLEN', slot.error)
  redis.call('ZCARD', born)
  rules.max_backlog = drop == '0' and max_backlog or 0
  local reply
  if unit == 'at' then
    reply = send_ahead(slot, rules, batch, tonumber(lowest), now_ms)
  else
    reply = send_batch(slot, rules, batch, lowest, now_ms)
  end
  rules.max_backlog = max_backlog
  if reply.err then
    return reply
  end
  if ttl == '1' then
    slot.born = born
    for i = batch.at + 1, batch.at + 2 * batch.number - 1, 2 do
      redis.call('ZADD', born, whole(now_ms), batch.args[i])
    end
  end
  local totals = {}
  reply[3] = '0'
  if drop == '1' then
    reply[3] = whole(drop_excess(slot, unit == 'priority', max_backlog, tonumber(max_retries), totals))
  end
  write_totals(slot.meta, totals)
  return reply
end
