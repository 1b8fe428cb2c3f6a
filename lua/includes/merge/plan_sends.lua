-- Works out what `number` sends make of the backlog, and writes nothing. From ARGV[at] on stand the contents, then
-- their values, then their records; `values` says how many values there are, `number` or 1 for all; likewise the
-- records. Returns a refusal, or nil and the plan: `names` in the order of their first sends, `records` (texts), `was`
-- (scores before, as text), `scores` and `cools` (ends of windows) by name, the counts `accepted`, `new` and `dropped`,
-- `outcomes`, a digit per message, and `soonest`, the earliest time at which something is due that was not before.
-- Where the rules are `plain`, a message is known by its body, and scores, as text, are those that new ones would have:
-- so a body that stands alone, which a server may leave that refuses to write half-way, holds up no message.
-- @include whole
-- @include records
-- @include fold_text
-- @include merged_score

-- The record of a send, as a table, with its times.
local function sent_record(text, now_ms)
  local sent = read_record(text)
  sent.first, sent.last = now_ms, now_ms
  return sent, write_record(sent)
end

local function plan_sends(slot, rules, at, number, values, now_ms)
  local first_value, first_record = at + number, at + number + values
  local bodies = redis.call('HMGET', slot.body, unpack(ARGV, at, at + number - 1))
  local stored = not rules.plain and redis.call('ZMSCORE', slot.store, unpack(ARGV, at, at + number - 1)) or {}
  local windows = rules.window == 'leading' or rules.window == 'trailing'
  local ends = windows and redis.call('ZMSCORE', slot.cool, unpack(ARGV, at, at + number - 1)) or {}
  local held = rules.max_items > 0 and redis.call('EXISTS', slot.held) > 0
  local same_value, same_record = values == 1, #ARGV == first_record
  local value = tonumber(ARGV[first_value])
  local sent, sent_text = sent_record(ARGV[first_record], now_ms)
  local first = rules.plain and whole(now_ms + value) or nil
  local names, size, records, scores, was, cools = {}, 0, {}, {}, {}, {}
  local accepted, new, dropped, outcomes, soonest = 0, 0, 0, {}, false
  for i = 1, number do
    local name = ARGV[at + i - 1]
    if i > 1 and not same_value then
      value = tonumber(ARGV[first_value + i - 1])
      first = rules.plain and whole(now_ms + value) or nil
    end
    if i > 1 and not same_record then
      sent, sent_text = sent_record(ARGV[first_record + i - 1], now_ms)
    end
    accepted = accepted + sent.count
    local text = records[name]
    if text == nil then
      size = size + 1
      names[size] = name
      text = (rules.plain or stored[i]) and (bodies[i] or stored[i] and '')
      was[name], scores[name] = stored[i] or nil, rules.plain and first or tonumber(stored[i] or nil)
    end
    local held_bytes = held and redis.call('HSTRLEN', slot.held, name) or 0
    local refusal, newest
    if text then
      text, refusal, newest = fold_text(rules, text, sent, held_bytes)
      if text and not rules.plain then
        local before = scores[name]
        local score = next_score(rules, before, value, text, newest, now_ms)
        scores[name] = score
        if score < before and (not soonest or score < soonest) then
          soonest = score
        end
      end
      outcomes[i] = '0'
    else
      text = sent_text
      if rules.max_items > 0 or sent.kind == 'S' then
        local record
        record, refusal = fold_sent(rules, nil, sent, held_bytes)
        text = record and write_record(record)
      end
      outcomes[i] = '1'
      if rules.plain then
        new = new + 1
        if not soonest or value < soonest then
          soonest = value
        end
      elseif text then
        local score, cool = first_score(rules, value, text, cools[name] or tonumber(ends[i] or nil), now_ms)
        if score then
          scores[name], cools[name], new = score, cool, new + 1
          if not soonest or score < soonest then
            soonest = score
          end
        else
          text, outcomes[i], dropped = false, '0', dropped + sent.count
        end
      end
    end
    if refusal then
      return redis.error_reply('RMQ_' .. refusal .. ' ' .. i)
    end
    records[name] = text
  end
  return nil, {
    names = names, size = size, records = records, scores = scores, was = was, cools = cools, accepted = accepted,
    new = new, dropped = dropped, outcomes = outcomes,
    soonest = soonest and rules.plain and now_ms + soonest or soonest,
  }
end
