-- The claim that is asked for most, without the tables and the questions of all others: up to `BRIEF` messages of a
-- slot that is quiet, or has bodies and no more, none of them in flight or ever rolled back; and before that at most
-- one ack by name, or, without bodies, that of a whole claim of as many. The slot's clock is as it mostly is, but that
-- claims of one millisecond may have let its stamps run ahead; and no lease has run out. Where the slot is settled only
-- (limit -1), nobody asks for these. All is read before anything is written. Returns the reply, or nil, with nothing
-- written, where the case is another.
-- @include whole
-- @include begin_write
local BRIEF = 8

-- What such a claim settles: how many deliveries, their claim score, and the content where it is named. Nil if it
-- settles more, or if messages of the topic expire.
local function brief_settlement(turn)
  local at, values = turn.at, turn.last - turn.at
  if ARGV[at] ~= '0' then
    return nil
  elseif values == 2 then
    return 0
  elseif values == 5 and ARGV[at + 1] == '1' and ARGV[at + 3] == '1' then
    return 1, ARGV[at + 2], ARGV[at + 4]
  elseif values == 4 and ARGV[at + 1] == '0' and ARGV[at + 2] == '1' then
    local number = tonumber(ARGV[at + 4])
    if number <= BRIEF then
      return number, ARGV[at + 3]
    end
  end
  return nil
end

-- How many of the first entries of store are due, at most `most`; nil where some were rolled back.
local function brief_size(peek, most, highest_first, now_ms, max_retries)
  local size = math.min(#peek / 2, most)
  if not highest_first then
    local due = 0
    while due < size and tonumber(peek[2 * due + 2]) <= now_ms do
      due = due + 1
    end
    size = due
  end
  if size > 0 and tonumber(peek[highest_first and 2 * size or 2]) <= max_retries then
    return nil
  end
  return size
end

-- Whether what is settled stands first in prepare, and is all that has its score where it is not named; and the claim
-- score behind it as text, nil for none.
local function brief_acks(slot, number, score, name)
  local held = redis.call('ZRANGE', slot.prepare, '0', whole(number), 'WITHSCORES')
  for i = 2, 2 * number, 2 do
    if held[i] ~= score then
      return false
    end
  end
  local behind = held[2 * number + 2]
  if number > 0 and (name and held[1] ~= name or not name and behind == score) then
    return false
  end
  return true, behind
end

-- The bodies of what is to be claimed, and how many bytes these have with their contents; nil if a body is larger than
-- it should be, if they do not fit, or if something of it is in flight. `held`: whether anything is.
local function brief_bodies(slot, rules, names, bodied, bound, held)
  local bodies, bytes = bodied and redis.call('HMGET', slot.body, unpack(names)) or {}, 0
  for i = 1, #names do
    local size = bodies[i] and #bodies[i] or 0
    if size > bound then
      return nil
    end
    bytes = bytes + #names[i] + size
  end
  if bytes > rules.room.left then
    return nil
  end
  local in_flight = held and redis.call('ZMSCORE', slot.prepare, unpack(names)) or {}
  for i = 1, #in_flight do
    if in_flight[i] then
      return nil
    end
  end
  return bodies, bytes
end

-- Takes what is settled out of prepare; with its body, unless a fresh copy in store has that by now.
local function write_brief_acks(slot, rules, bodied, number, name)
  if number > 0 then
    local stays = not bodied or redis.call('ZSCORE', slot.store, name)
    redis.call('ZREMRANGEBYRANK', slot.prepare, '0', whole(number - 1))
    if not stays then
      redis.call('HDEL', slot.body, name)
    end
  elseif not rules.joined then
    begin_write(slot)
  end
end

-- Moves the first `size` messages from store to prepare, none of which is there: see brief_bodies.
local function write_brief_claim(slot, names, size, score, highest_first)
  local claims = {}
  for i = 1, size do
    claims[2 * i - 1], claims[2 * i] = score, names[i]
  end
  redis.call('ZADD', slot.prepare, unpack(claims))
  if highest_first then
    redis.call('ZREMRANGEBYRANK', slot.store, whole(-size), '-1')
  else
    redis.call('ZREMRANGEBYRANK', slot.store, '0', whole(size - 1))
  end
end

-- `bodied`: whether the slot has bodies. `stored`: what check_fence has read. `peek`: the first entries of store, one
-- more than are taken. `number`, `score` and `name`: see brief_settlement.
local function claim_brief(slot, rules, turn, now_ms, bodied, stored, peek, number, score, name)
  local last, delivered, acked = tonumber(stored[4]), tonumber(stored[6] or 0), tonumber(stored[7] or 0)
  local seen = last
  if stored[4] and not last then -- claims of one millisecond have let the stamps run ahead
    last, seen = string.match(stored[4], '^(%d+) (%d+)$')
    last, seen = tonumber(last), tonumber(seen)
  end
  local lease_ms, highest_first, settle_only = rules.lease_ms, rules.highest_first, turn.limit < 0
  if not settle_only and (turn.start ~= 0 or not (last and seen <= now_ms and last < now_ms + 1000
    and stored[5] == whole(lease_ms) and stored[8] and delivered and acked)) then
    return nil
  end
  local most = math.max(0, math.min(turn.limit, BRIEF))
  local size = brief_size(peek, most, highest_first, now_ms, rules.max_retries)
  local upcoming = size and peek[2 * size + 2]
  if not size or (size == BRIEF and turn.limit > BRIEF and upcoming) or (bodied and number > 0 and not name) then
    return nil
  end

  local fine, oldest = true, nil
  if number > 0 or not settle_only then
    fine, oldest = brief_acks(slot, number, score, name)
  end
  oldest = not settle_only and tonumber(oldest)
  if not fine or oldest and (oldest < (now_ms - lease_ms) * 1000 or oldest > (now_ms + 86400000) * 1000
    or math.floor(seen / 60000) ~= math.floor(now_ms / 60000)) then
    return nil -- see find_expired
  end
  local bodies, bytes, names = {}, 0, {}
  if size > 0 then
    for i = 1, size do
      names[i] = peek[2 * i - 1]
    end
    bodies, bytes = brief_bodies(slot, rules, names, bodied, tonumber(stored[8]) or 0, oldest)
    if not bodies then
      return nil
    end
  end

  write_brief_acks(slot, rules, bodied, number, name)
  local now, stamp = whole(now_ms), last and math.max(now_ms, last + 1) or now_ms
  local stamp_text = stamp == now_ms and now or whole(stamp) .. ' ' .. now
  if size > 0 then
    local fields = number > 0 and { 'acked', whole(acked + number) } or {}
    rules.room.left, rules.room.first = rules.room.left - bytes, false
    write_brief_claim(slot, names, size, whole(stamp * 1000 + rules.max_retries), highest_first)
    redis.call('HSET', slot.meta, 'stamp', stamp_text, 'delivered', whole(delivered + size), unpack(fields))
  elseif number > 0 then
    redis.call('HINCRBY', slot.meta, 'acked', whole(number))
  end

  local due = highest_first and upcoming and now_ms or tonumber(upcoming)
  if not (due and due <= now_ms) and (oldest or size > 0) then
    local ends = math.floor((oldest or stamp * 1000) / 1000) + lease_ms + 1
    due = math.min(ends, due or ends)
  end
  due = due and whole(math.max(1, math.min(due, 9007199254740991))) or '0'
  for i = #peek, 2 * size + 1, -1 do
    peek[i] = nil
  end
  return { now, due, '0', '0', {}, peek, bodies, {}, settle_only and '0' or whole(stamp), '' }
end
