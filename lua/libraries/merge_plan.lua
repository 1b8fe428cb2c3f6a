-- What a send to a topic that merges does with each content: reads what is there, plans, and stores it.
-- @include fence, redis, scores, sends, merge_record, merge_fold

-- Reads how a topic merges: the packed argument `rules` of sends, a JSON object that a client makes once for a topic.
--   kind         RANGE_MERGE, FIXED_TIME or PRIORITY
--   max_backlog  most messages in a slot's store; 0 for no bound
--   drop         true: beyond max_backlog, drop what would be delivered last; false: refuse the batch
--   max_retries  0 to 999
--   ttl          true: note the time of sending in born
--   scale        PRIORITY, oldest first: of the scores, see aged; else 1
--   unit_ms      PRIORITY, oldest first: of the ages; else 1
--   highest      PRIORITY: largest priority
--   priority     PRIORITY: last, highest, lowest or sum
--   window       RANGE_MERGE: fixed, sliding, leading or trailing
--   max_wait     sliding: ms from the first send to the latest due time
--   max_count    due at once with so many sends; 0 for no bound
--   max_items    most items of a message; 0 where it has none
--   max_bytes    most bytes of its items
--   when_full    release, refuse, drop_oldest or drop_newest
-- Whole numbers are at most 2^53 - 1, as `Topic` checks: a double of Lua holds them. Added are `publish`, the command
-- for the wake hint; `lowest`, the least value of a batch (FIXED_TIME); `plain`: no send puts off a message
-- in store; and `completes`: a message may be due before its time.
local function merge_rules(packed, lowest, publish)
  local rules = cjson.decode(packed)
  local timed = rules.kind == 'RANGE_MERGE'
  rules.lowest, rules.publish = tonumber(lowest), publish
  rules.completes = timed and (rules.max_count > 0 or rules.max_items > 0)
  rules.plain = timed and rules.window == 'fixed'
  return rules
end

-- Whether a message has what it waits for: so many sends, or parts, or items that no more are taken. `text` is its
-- record, `count` and `number` stand there, too; or not yet, and `size` is how many bytes its items have.
local function is_complete(rules, text, count, number, size)
  if rules.max_count > 0 and count >= rules.max_count then
    return true
  end
  if rules.max_items == 0 then
    return false
  end
  local kind = string.sub(text, 37, 37)
  if kind == 'J' and number >= struct.unpack('<d', text, 38) then
    return true
  end
  local full = number >= rules.max_items or (size or #text - 36 - frames_from(kind)) >= rules.max_bytes
  return rules.when_full == 'release' and full
end

-- The store scores of messages of a topic that merges. `value`: what the send names: ms, epoch ms or a priority.

-- Of a content that is not in store; nil where it is dropped. `complete`: it need not wait; `cool`: end of its window,
-- or nil. Returns the next end, too, where that is another one.
local function first_score(rules, value, complete, cool, now_ms)
  if rules.kind == 'PRIORITY' then
    return rules.scale > 1 and aged(value, rules.scale, rules.unit_ms, now_ms) or value
  end
  if rules.kind == 'FIXED_TIME' then
    return value
  end
  if rules.window == 'leading' or rules.window == 'trailing' then
    if not cool or cool <= now_ms then
      return now_ms, now_ms + value
    end
    if rules.window == 'leading' then
      return nil
    end
    if complete then
      return now_ms, nil -- the window goes on
    end
    return cool, cool + value
  end
  local due = rules.window == 'sliding' and math.min(value, rules.max_wait) or value
  return complete and now_ms or now_ms + due
end

-- Of a content in store: `score` is the one it has. `newest`: the send has the newest version; `first`: when the first
-- send of the message was.
local function next_score(rules, score, value, complete, newest, now_ms, first)
  if rules.kind == 'PRIORITY' then
    local scale = rules.scale
    if not newest then
      return score
    end
    if scale > 1 and score < scale or scale == 1 and score <= rules.max_retries then
      return first_score(rules, value, false, nil, now_ms) -- it was rolled back
    end
    local own = math.floor(score / scale)
    local priority = value
    if rules.priority == 'highest' then
      priority = math.max(own, value)
    elseif rules.priority == 'lowest' then
      priority = math.min(own, value)
    elseif rules.priority == 'sum' then
      priority = math.max(own, math.min(own + value, rules.highest))
    end
    return priority * scale + score % scale
  end
  if rules.kind == 'FIXED_TIME' then
    return newest and value or score
  end
  if score <= now_ms then
    return score -- what is due, and what was rolled back, stays due
  end
  if complete then
    return now_ms
  end
  if rules.window == 'sliding' and newest then
    local due, latest = now_ms + value, first + rules.max_wait
    return due < latest and due or latest > now_ms and latest or now_ms
  end
  return score
end

local BUDGET = 4194304

-- The record of a send, with its times.
local function sent_record(text, now_ms)
  local sent = read_record(text)
  sent.first, sent.last = now_ms, now_ms
  return sent
end

-- What the messages have in store, and of how many of the messages: no more than may be rewritten. Where values may be
-- large each content is read once, and `places` says at which of its messages. To ask for the size of each costs a
-- command a message, and is spared where no value is large.
local function read_stored(slot, rules, at, number)
  if number == 1 or redis.call('HGET', slot.meta, 'body_bound') or redis.call('HLEN', slot.body) == 0 then
    return redis.call('HMGET', slot.body, unpack(ARGV, at, at + number - 1)), number, nil
  end
  local left, names, places = BUDGET / (rules.max_items > 0 and 8 or 2), {}, {}
  if rules.each == nil then
    left = math.huge
  end
  for i = 1, number do
    local name = ARGV[at + i - 1]
    if not places[name] then
      names[#names + 1], places[name] = name, i
      left = left - (left < math.huge and redis.call('HSTRLEN', slot.body, name) or 0)
    end
    if left <= 0 then
      number = i
      break
    end
  end
  local bodies = {}
  for i, body in ipairs(redis.call('HMGET', slot.body, unpack(names))) do
    bodies[places[names[i]]] = body
  end
  return bodies, number, places
end

-- Works out what `number` sends make of the backlog, and writes nothing. From ARGV[at] on stand the contents, then
-- their values, then their records; `values` says how many values there are, `number` or 1 for all; likewise the
-- records. Returns a refusal, or nil and the plan: `names` in the order of their first sends, `records` (texts), `was`
-- (scores before, as text), `scores` and `cools` (ends of windows) by name, the counts `accepted`, `new` and `dropped`,
-- `outcomes`, a digit per message, and `soonest`, the earliest time at which something is due that was not before.
-- With `rules.each` a message that has no room is refused by itself: its outcome is 2 (ITEMS) or 3 (RANGE), and nothing
-- comes of it. Unless the caller wants all or nothing (`rules.each` is nil), a call folds as much as it may cost, see
-- fold_cost, and one message at least: there are fewer outcomes then. `partly`: either is the case.
-- Where the rules are `plain`, a message is known by its body, and scores in store are not read: `adds` has score and
-- name of each message, as if it were new, so that a body that stands alone, which a server may leave that refuses to
-- write half-way, holds up no message; `due` has those of messages that need not wait any longer, if they still do.
-- `windows_noted`: Redis' time when the end of a window was last noted in the slot, nil where windows have none. If it
-- lies ahead, the clock was set back, and the ends would be late by as much: all of them are over, `windows_over`.
local function plan_sends(slot, rules, at, number, values, now_ms)
  local first_value, first_record = at + number, at + number + values
  local given, cost, refused = number, 0, false
  local bodies, places
  bodies, number, places = read_stored(slot, rules, at, number)
  local stored = not rules.plain and redis.call('ZMSCORE', slot.store, unpack(ARGV, at, at + number - 1)) or {}
  local windows = rules.window == 'leading' or rules.window == 'trailing'
  local noted = windows and tonumber(redis.call('HGET', slot.meta, 'windows') or 0) or nil
  local over = windows and noted > now_ms + 1000 -- by less it is not worth while: some windows would end early
  local ends = windows and not over and redis.call('ZMSCORE', slot.cool, unpack(ARGV, at, at + number - 1)) or {}
  local held = rules.max_items > 0 and redis.call('EXISTS', slot.held) > 0
  local same_value, same_record = values == 1, #ARGV == first_record
  local value = tonumber(ARGV[first_value])
  local sent, sent_text = sent_record(ARGV[first_record], now_ms), nil
  local first = rules.plain and whole(now_ms + value) or nil
  local names, size, records, scores, was, cools = {}, 0, {}, {}, {}, {}
  local plain, completes, max_items = rules.plain, rules.completes, rules.max_items
  local accepted, new, dropped, outcomes, soonest = 0, 0, 0, {}, false
  local adds, due, filled, gathered, now_text = {}, {}, {}, {}, whole(now_ms)
  for i = 1, number do
    local name = ARGV[at + i - 1]
    if i > 1 and not same_value then
      value = tonumber(ARGV[first_value + i - 1])
      first = plain and whole(now_ms + value) or nil
    end
    if i > 1 and not same_record then
      sent, sent_text = sent_record(ARGV[first_record + i - 1], now_ms), nil
    end
    if cost >= BUDGET and rules.each ~= nil then
      number = i - 1
      break
    end
    local text, earlier = records[name], records[name] ~= nil
    if not earlier then
      size = size + 1
      names[size] = name
      text = (plain or stored[i]) and (bodies[places and places[name] or i] or stored[i] and '')
      if plain then
        adds[2 * size - 1], adds[2 * size] = first, name
      else
        was[name], scores[name] = stored[i] or nil, tonumber(stored[i] or nil)
      end
    end
    local held_bytes = held and math.max(0, redis.call('HSTRLEN', slot.held, name) - 37) or 0
    local folded, refusal, newest, sent_first, count, items
    local group, size_bytes = false, nil
    if earlier and text and held_bytes == 0 and #text >= 1024 then -- where little is copied, this would cost more
      group = gather(rules, gathered, name, text, sent)
    end
    cost = cost + (text and 5120 or 0) -- whatever is folded, finding it and noting it takes a few µs
    if group then
      folded, newest, sent_first, count, items = text, true, group.first, group.count, group.number
      cost, group.cost, size_bytes = cost + group.cost, 0, group.size
    elseif text then
      text = gathered[name] and ungather(gathered, name) or text
      if #text + #sent.value > 512 then
        cost = cost + fold_text_cost(text, sent)
      end
      folded, refusal, newest, sent_first, count, items = fold_text(rules, text, sent, held_bytes)
      if refusal then
        local score = scores[name]
        if plain and not earlier then
          score = tonumber(redis.call('ZSCORE', slot.store, name) or nil)
          text = score and text -- else a body that stands alone
        end
        if score and score > now_ms then
          filled[name] = refusal == 'ITEMS' and completes and rules.when_full == 'release' and held_bytes == 0
        end
        local record = filled[name] and fold(read_record(text), sent)
        local bytes = record and #record.value + 1 - frames_from(record.kind)
        if record and record.number <= 3 * max_items and bytes <= 3 * rules.max_bytes then
          -- a failed flight has filled it, before its time: what this call sends goes along, and makes it due
          folded, refusal, newest, sent_first = write_record(record), nil, true, record.first
          count, items = record.count, max_items
        end
      end
    end
    local is_new = not text
    if is_new then
      folded, count, items, refusal = sent_text, sent.count, sent.number, nil
      if max_items > 0 or sent.kind == 'S' then
        local record
        record, refusal = fold_sent(rules, nil, sent, held_bytes)
        folded, items = record and write_record(record), record and record.number
      elseif not folded then
        sent_text = write_record(sent)
        folded = sent_text
      end
    end
    if refusal and not rules.each then
      return redis.error_reply('RMQ_' .. refusal .. ' ' .. i)
    end
    accepted = accepted + (refusal and 0 or sent.count)
    local complete = completes and not refusal and is_complete(rules, folded, count, items, size_bytes)
    outcomes[i] = is_new and '1' or '0'
    if refusal then
      outcomes[i], refused, folded = refusal == 'ITEMS' and '2' or '3', true, text or false
      if not earlier then -- as if it had not been sent
        folded, names[size], was[name], scores[name] = nil, nil, nil, nil
        adds[2 * size - 1], adds[2 * size] = nil, nil
        size = size - 1
      end
    elseif plain then
      if complete then
        due[#due + 1], due[#due + 2] = now_text, name
      end
      if is_new then
        new = new + 1
        if not soonest or value < soonest then
          soonest = value
        end
      end
    elseif is_new then
      local score, cool = first_score(rules, value, complete, cools[name] or tonumber(ends[i] or nil), now_ms)
      if score then
        scores[name], cools[name], new = score, cool, new + 1
        if not soonest or score < soonest then
          soonest = score
        end
      else
        folded, outcomes[i], dropped = false, '0', dropped + sent.count
      end
    else
      local before = scores[name]
      local score = next_score(rules, before, value, complete, newest, now_ms, sent_first)
      scores[name] = score
      local cool = windows and score < before and (cools[name] or tonumber(ends[i] or nil))
      if cool and cool - value == before then
        cools[name] = before -- it leaves before the end of its window: that one goes on
      end
      if score < before and (not soonest or score < soonest) then
        soonest = score
      end
    end
    records[name] = folded
  end
  for name in pairs(gathered) do
    records[name] = ungather(gathered, name)
  end
  return nil, {
    partly = refused or number < given,
    names = names, size = size, records = records, scores = scores, was = was, cools = cools, accepted = accepted,
    new = new, dropped = dropped, outcomes = outcomes, adds = adds, due = due,
    soonest = soonest and rules.plain and now_ms + soonest or soonest, windows_noted = noted, windows_over = over,
  }
end

-- Takes those of `number` sends, as `plan_sends` takes them, out of ARGV whose fixed time does not lie ahead. Returns
-- how many are left, and by place among all their places now. Where all have one value, that is that of none, or of
-- all.
local function take_out_passed(at, number, values, now_ms)
  local contents, times, records, places = {}, {}, {}, {}
  local first_value, first_record = at + number, at + number + values
  local same_record = #ARGV == first_record
  for i = 1, number do
    local due_ms = ARGV[first_value + (values == 1 and 0 or i - 1)]
    if tonumber(due_ms) > now_ms then
      local place = #contents + 1
      places[i], contents[place], times[place] = place, ARGV[at + i - 1], due_ms
      if place == 1 or not same_record then
        records[place] = ARGV[first_record + (same_record and 0 or i - 1)]
      end
    end
  end
  for i = #ARGV, at, -1 do
    ARGV[i] = nil
  end
  for _, list in ipairs({ contents, times, records }) do
    for _, text in ipairs(list) do
      ARGV[#ARGV + 1] = text
    end
  end
  return #contents, places
end

-- Due times are whole, within what a score holds. A promoted priority may be above that.
local function due_text(due_ms)
  return whole(due_ms < 9007199254740991 and due_ms or 9007199254740991)
end

-- Notes the ends of windows, of which no more are kept than are to come.
local function store_windows(slot, plan, now_ms)
  local fields, ends, cools = {}, 0, plan.cools
  if plan.windows_over then
    local gone = redis.pcall('UNLINK', slot.cool)
    if type(gone) == 'table' then -- no right to that
      redis.call('ZREMRANGEBYRANK', slot.cool, '0', '-1')
    end
  end
  if plan.windows_over or next(cools) and now_ms - plan.windows_noted >= 1000 then
    redis.call('HSET', slot.meta, 'windows', whole(now_ms))
  end
  for name, cool in pairs(cools) do
    fields[#fields + 1], fields[#fields + 2] = due_text(cool), name
    ends = math.max(ends, cool)
  end
  if #fields > 0 then
    local over = redis.call('ZRANGEBYSCORE', slot.cool, '-inf', whole(now_ms), 'LIMIT', 0, #fields + 16)
    if #over > 0 then
      redis.call('ZREM', slot.cool, unpack(over))
    end
    redis.call('ZADD', slot.cool, unpack(fields))
    ends = math.max(ends, tonumber(redis.call('ZREVRANGE', slot.cool, 0, 0, 'WITHSCORES')[2]))
    redis.call('PEXPIRE', slot.cool, due_text(ends - now_ms + 60000))
  end
end

-- How many are in store that consumers who wait until `soonest` (text) know of: those in flight may hide what is due.
local function known_until(slot, size, in_flight, soonest, now_ms)
  if not soonest or size <= in_flight then
    return 0
  end
  return redis.call('ZCOUNT', slot.store, in_flight > 0 and '(' .. whole(now_ms) or '-inf', soonest)
end

-- Writes what has changed of the planned messages. Returns how many were new, and how many need not wait any longer.
local function store_plan(slot, rules, plan, now_ms)
  local added, sooner, scores, bodies, largest, names, records = 0, 0, {}, {}, 0, plan.names, plan.records
  local number, at, text_of = 0, 0, rules.kind == 'PRIORITY' and whole or due_text
  for i = 1, plan.size do
    local name = names[i]
    local record, score = records[name], plan.scores[name]
    if record then
      at = at + 2
      bodies[at - 1], bodies[at] = name, record
      if #record > largest then
        largest = #record
      end
    end
    if score then
      local text = text_of(score)
      if text ~= plan.was[name] then
        number = number + 2
        scores[number - 1], scores[number] = text, name
      end
    end
  end
  local begun = begin_store(slot.store, names, 1, 1, plan.size)
  if rules.plain then
    added = redis.call('ZADD', slot.store, 'NX', unpack(plan.adds))
    if #plan.due > 0 then
      sooner = redis.call('ZADD', slot.store, 'XX', 'LT', 'CH', unpack(plan.due)) -- what is due keeps its place
    end
  elseif number > 0 then
    added = redis.call('ZADD', slot.store, unpack(scores))
  end
  if begun then
    end_skiplist(slot.store, '-inf')
  end
  if largest > 4096 then
    redis.call('HDEL', slot.meta, 'body_bound')
  end
  if at > 0 then
    fill_hash(slot.body, bodies)
  end
  if rules.ttl and at > 0 then
    local born, now = {}, whole(now_ms)
    for i = 1, at, 2 do
      born[i], born[i + 1] = now, bodies[i]
    end
    redis.call('ZADD', slot.born, unpack(born))
  end
  store_windows(slot, plan, now_ms)
  return added, sooner
end

-- Sends `number` messages of a topic that merges, as `plan_sends` takes them. Returns the reply: how many were new, '1'
-- or '0' per message, how many were dropped; with `partly` where not all were taken, `nothing` where none was. All is
-- worked out before the first write. With `rules.each_time` a message whose time has passed is refused by itself: its
-- outcome is 4; the call is refused where no time lies ahead.
local function send_folded(slot, rules, at, number, values, now_ms)
  local all, places = number, nil
  if rules.lowest < 0 then
    -- @include sends
    rules.lowest = due_times(at + number, values, 1, now_ms)
  end
  local passed = rules.kind == 'FIXED_TIME' and past_refusal(rules.lowest, now_ms)
  if passed then
    number, places = take_out_passed(at, number, values, now_ms)
    values = number
    if number == 0 or not rules.each_time then
      return passed
    end
  end
  local size, in_flight = redis.call('ZCARD', slot.store), redis.call('ZCARD', slot.prepare)
  check_types({ slot.retry, slot.cool, slot.born }, { slot.held, slot.error })
  local refusal, plan = plan_sends(slot, rules, at, number, values, now_ms)
  if refusal then
    return refusal
  end
  local outcomes = table.concat(plan.outcomes)
  if places then
    -- @include sends
    outcomes, plan.partly = with_passed(outcomes, places, all), true
  end
  if plan.size == 0 then
    return { 0, outcomes, '0', partly = true, nothing = true }
  end
  if rules.max_backlog > 0 and not rules.drop and plan.new > 0 and size + plan.new > rules.max_backlog then
    return redis.error_reply('RMQ_FULL ' .. size .. ' ' .. rules.max_backlog)
  end
  local soonest, waited_for = '0', 0
  if rules.kind ~= 'PRIORITY' then
    soonest = plan.soonest and due_text(plan.soonest)
    waited_for = known_until(slot, size, in_flight, soonest, now_ms)
  end
  local due_before = #plan.due > 0 and known_until(slot, size, in_flight, whole(now_ms), now_ms)
  if redis.call('HINCRBY', slot.meta, 'accepted', whole(plan.accepted)) == plan.accepted and size == 0 then
    redis.call('HSET', slot.meta, 'body_bound', '4096') -- the slot's first messages: no body is older
  end
  local new, sooner = store_plan(slot, rules, plan, now_ms)
  if sooner > 0 then
    soonest, waited_for = whole(now_ms), due_before
  end
  local totals, dropped = { merged = plan.accepted - plan.dropped - new, dropped = plan.dropped }, plan.dropped
  if rules.drop then
    -- @include sends
    slot.born = rules.ttl and slot.born or nil
    dropped = dropped + drop_excess(slot, rules.kind == 'PRIORITY', rules.max_backlog, rules.max_retries, totals)
  end
  -- @include totals
  write_totals(slot.meta, totals)
  if soonest and waited_for == 0 then
    hint(rules.publish, slot.wake, soonest)
  end
  return { new, outcomes, whole(dropped), partly = plan.partly }
end
