-- The store scores of messages of a topic that merges. `value`: what the send names: ms, epoch ms or a priority.
-- `text`: the record, with the send in it.
-- @include records
-- @include frames
-- @include aged

-- Whether a message has what it waits for: so many sends, or parts, or items that no more are taken.
local function is_complete(rules, text)
  if not rules.completes then
    return false
  end
  local record = read_record(text)
  local kind, number = record.kind, record.number
  if rules.max_count > 0 and record.count >= rules.max_count then
    return true
  end
  if kind == 'J' and number >= struct.unpack('<d', record.value) then
    return true
  end
  local full = number >= rules.max_items or #record.value + 1 - frames_from(kind) >= rules.max_bytes
  return rules.max_items > 0 and rules.when_full == 'release' and full
end

-- Of a content that is not in store; nil where it is dropped. `cool`: end of its window, or nil. Returns the next end,
-- too.
local function first_score(rules, value, text, cool, now_ms)
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
    return is_complete(rules, text) and now_ms or cool, cool + value
  end
  local due = rules.window == 'sliding' and math.min(value, rules.max_wait) or value
  return is_complete(rules, text) and now_ms or now_ms + due
end

-- Of a content in store: `score` is the one it has. `newest`: the send has the newest version.
local function next_score(rules, score, value, text, newest, now_ms)
  if rules.kind == 'PRIORITY' then
    local scale = rules.scale
    if not newest then
      return score
    end
    if scale > 1 and score < scale or scale == 1 and score <= rules.max_retries then
      return first_score(rules, value, text, nil, now_ms) -- it was rolled back
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
  if is_complete(rules, text) then
    return now_ms
  end
  if rules.window == 'sliding' and newest then
    local due, latest = now_ms + value, 0
    if is_record(text) then
      local _, first = struct.unpack('<dd', text, 5)
      latest = first + rules.max_wait
    end
    return due < latest and due or latest > now_ms and latest or now_ms
  end
  return score
end
