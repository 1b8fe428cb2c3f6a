-- The store scores of messages of a topic that merges. `value`: what the send names: ms, epoch ms or a priority.
-- @include frames
-- @include aged

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
