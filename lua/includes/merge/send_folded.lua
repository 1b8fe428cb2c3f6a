-- Sends `number` messages of a topic that merges, as `plan_sends` takes them. Returns the reply: how many were new, '1'
-- or '0' per message, how many were dropped; with `partly` where not all were taken, `nothing` where none was. All is
-- worked out before the first write. With `rules.each_time` a message whose time has passed is refused by itself: its
-- outcome is 4; the call is refused where no time lies ahead.
-- @include check_types
-- @include whole
-- @include hint
-- @include fill_hash
-- @include plan_sends
-- @include take_out_passed
-- @include begin_store

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

local function send_folded(slot, rules, at, number, values, now_ms)
  local all, places = number, nil
  if rules.lowest < 0 then
    -- @include due_times
    rules.lowest = due_times(at + number, values, 1, now_ms)
  end
  if rules.kind == 'FIXED_TIME' and rules.lowest <= now_ms then
    number, places = take_out_passed(at, number, values, now_ms)
    values = number
    if number == 0 or not rules.each_time then
      return redis.error_reply('RMQ_PAST ' .. whole(now_ms) .. ' ' .. whole(rules.lowest))
    end
  end
  local size, in_flight = redis.call('ZCARD', slot.store), redis.call('ZCARD', slot.prepare)
  check_types({ slot.retry, slot.cool, slot.born }, { slot.held, slot.error })
  local refusal, plan = plan_sends(slot, rules, at, number, values, now_ms)
  if refusal then
    return refusal
  end
  if places then
    plan.outcomes, plan.partly = with_passed(plan.outcomes, places, all), true
  end
  if plan.size == 0 then
    return { 0, table.concat(plan.outcomes), '0', partly = true, nothing = true }
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
    -- @include drop_excess
    slot.born = rules.ttl and slot.born or nil
    dropped = dropped + drop_excess(slot, rules.kind == 'PRIORITY', rules.max_backlog, rules.max_retries, totals)
  end
  -- @include write_totals
  write_totals(slot.meta, totals)
  if soonest and waited_for == 0 then
    hint(rules.publish, slot.wake, soonest)
  end
  return { new, table.concat(plan.outcomes), whole(dropped), partly = plan.partly }
end
