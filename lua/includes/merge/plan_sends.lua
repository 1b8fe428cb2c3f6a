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
-- @include whole
-- @include records
-- @include write_record
-- @include fold_text
-- @include gather
-- @include merged_score

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
