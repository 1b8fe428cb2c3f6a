-- The quick paths of a claim: each does what claim_slot and take do, in fewer commands, for the cases that are most
-- frequent. tests/lua/test_claim_brief.py and test_one_score.py compare what they leave.
-- @include fence, totals, redis, room, take

-- Claims of fewer messages do not ask whether all of them have one score: that would cost more than it saves.
local LEAST_ALIKE = 32

-- Puts `size` messages into prepare (`claims`: claim score and content, alternating), but for those that are in flight.
-- Nothing in prepare can have this stamp yet: so one ZADD NX both claims and finds out. Returns how many were put.
local function into_prepare(slot, claims, size, stamp)
  local begun = begin_skiplist(slot.prepare, size, '0', string.format('%065.0f', stamp))
  local taken = redis.call('ZADD', slot.prepare, 'NX', unpack(claims))
  if begun then
    end_skiplist(slot.prepare, '0')
  end
  return taken
end

-- Where fewer were put than named: which of the contents have this claim score.
local function put_among(slot, names, claim_score)
  local mine, scores = {}, redis.call('ZMSCORE', slot.prepare, unpack(names))
  for i = 1, #names do
    if scores[i] == claim_score then
      mine[#mine + 1] = i
    end
  end
  return mine
end

-- The claim that is asked for most, without the tables and the questions of all others: up to `BRIEF` messages of a
-- slot that is quiet, or has bodies and no more, none of them in flight or ever rolled back; and before that at most
-- one ack by name, or, without bodies, that of a whole claim of as many. The slot's clock is as it mostly is, but that
-- claims of one millisecond may have let its stamps run ahead; and no lease has run out. Where the slot is settled only
-- (limit -1), nobody asks for these. All is read before anything is written. Returns the reply, or nil, with nothing
-- written, where the case is another.
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

local function read_names(slot, highest_first, number)
  local command = highest_first and 'ZREVRANGE' or 'ZRANGE'
  local names, bytes = {}, 0
  while #names < number and bytes <= slot.room.left do
    local read = #names
    local page = redis.call(command, slot.store, read, math.min(number, read + slot.piece) - 1)
    for i = 1, #page do
      names[read + i] = page[i]
      bytes = bytes + #page[i]
    end
  end
  return names, bytes
end

-- The case of `take_fresh` in which all that is taken has one score, as the messages of a batch mostly have: contents
-- are read and handed over without scores, whose digits are a third of what a claim costs. Only in a quiet slot, and
-- where messages have no record. `peek`: the first entries of store, two at least. Returns contents, their score, how
-- many were passed over because they are in flight, and whether all that is due was seen. If some were in flight:
-- contents and store scores, alternating, and false for the score. Nothing at all, with nothing written, where the case
-- is another. Where contents do not fit, `take_fresh` goes on from `slot.page`.
local function take_alike(slot, highest_first, limit, now_ms, stamp, max_retries, totals, peek)
  local score = peek[4]
  if limit < LEAST_ALIKE or slot.any or slot.born or slot.held or peek[2] ~= score or tonumber(score) <= max_retries or
    not highest_first and tonumber(score) > now_ms then
    return nil
  end
  local number, ended = redis.call('ZCOUNT', slot.store, score, score), false
  if number < limit / 2 then
    return nil
  elseif number < limit then
    local due = highest_first and redis.call('ZCARD', slot.store) or
      redis.call('ZCOUNT', slot.store, '-inf', whole(now_ms))
    if due > number then
      return nil
    end
    ended = true
  end
  number = math.min(number, limit)
  local names, bytes = read_names(slot, highest_first, number)
  if bytes > slot.room.left then
    slot.page, slot.page_ends = {}, ended and #names == number
    for i = 1, #names do
      slot.page[2 * i - 1], slot.page[2 * i] = names[i], score
    end
    return nil
  end
  local left, first = slot.room.left, slot.room.first
  slot.room.left, slot.room.first = left - bytes, false
  local claims, fresh = {}, whole(stamp * 1000 + max_retries)
  for i = 1, number do
    claims[2 * i - 1] = fresh
    claims[2 * i] = names[i]
  end
  local taken = into_prepare(slot, claims, number, stamp)
  if taken == 0 then
    slot.room.left, slot.room.first = left, first -- as in `take_fresh`
  end
  tally(totals, 'delivered', taken)
  if taken == number then
    if highest_first then
      redis.call('ZREMRANGEBYRANK', slot.store, -number, -1)
    else
      redis.call('ZREMRANGEBYRANK', slot.store, 0, number - 1)
    end
    return names, score, 0, ended
  end
  local mine, items = {}, {}
  for n, i in ipairs(put_among(slot, names, fresh)) do
    mine[n] = names[i]
    items[2 * n - 1], items[2 * n] = names[i], score
  end
  if #mine > 0 then
    redis.call('ZREM', slot.store, unpack(mine))
  end
  return items, false, number - taken, ended
end

-- The common case of `take`, at the server's lowest price: what is due was never rolled back. Returns contents and
-- store scores, alternating, how many entries were passed over because they are in flight, and whether all that is due
-- was seen; nothing at all, with nothing written, where the case is another. How large contents are shows only once
-- they are read: so no more than a piece is read before it is known whether they fit. `peek`: the first entries of
-- store, two at least, where they are known. Where ties are `any`, `take` looks for the rest from the first message on:
-- then 0 is returned for the number passed over, which is in `slot.passed`.
local function take_fresh(slot, highest_first, limit, now_ms, stamp, max_retries, totals, peek)
  if limit == 0 then
    return nil
  end
  local tied = slot.any and peek and peek[2] == peek[4] and peek[2]
  slot.view = slot.any and { stamp = stamp, rank = 0, tied = tied }
  local page, wanted, ended
  local upto = string.format('%.0f', now_ms)
  local second = peek and peek[4]
  if peek and not (second and (highest_first or tonumber(second) <= now_ms)) then
    if peek[1] and (highest_first or tonumber(peek[2]) <= now_ms) then
      page, slot.upcoming = { peek[1], peek[2] }, second and tonumber(second) or false
    else
      page, slot.upcoming = {}, tonumber(peek[2]) or false
    end
    ended = #page < 2 * limit
  elseif peek and limit == 1 and not tied then
    page = { peek[1], peek[2] }
  elseif slot.page then
    page, ended, wanted = slot.page, slot.page_ends, slot.piece
  else
    wanted = math.min(limit, slot.piece)
    page = read_page(slot, highest_first, 0, wanted, upto)
    ended = #page < 2 * wanted
  end
  if #page == 0 then
    return page, 0, true
  end
  if tonumber(page[highest_first and #page or 2]) <= max_retries then
    return nil
  end
  local fresh = string.format('%.0f', stamp * 1000 + max_retries)
  local read = #page / 2
  local left, first = slot.room.left, slot.room.first
  local size, rest = fitting(slot, page), false
  while wanted and size == read and read < limit and not ended do
    wanted = math.min(limit - read, slot.piece)
    local more = read_page(slot, highest_first, read, wanted, upto)
    if highest_first and #more > 0 and tonumber(more[#more]) <= max_retries then
      rest = true
      break -- these are for `take`
    end
    ended = #more < 2 * wanted
    for i = 1, #more do
      page[2 * read + i] = more[i]
    end
    read, size = read + #more / 2, size + fitting(slot, more)
  end
  for i = 2 * read, 2 * size + 1, -1 do
    page[i] = nil
  end
  slot.cut = size < read
  if size == 0 then
    return page, 0, false
  end
  local claims = {}
  for i = 1, 2 * size, 2 do
    claims[i] = fresh
    claims[i + 1] = page[i]
  end
  local items, taken = page, into_prepare(slot, claims, size, stamp)
  local has_retries = not slot.quiet and redis.call('ZCARD', slot.retry) > 0
  if taken < size or has_retries then
    items = {}
    local names, mine = {}, {}
    for i = 1, size do
      names[i] = page[2 * i - 1]
    end
    for n, i in ipairs(put_among(slot, names, fresh)) do
      mine[n] = names[i]
      items[2 * n - 1], items[2 * n] = names[i], page[2 * i]
    end
    if #mine > 0 then
      tally(totals, 'merged', redis.call('ZREM', slot.retry, unpack(mine)))
      redis.call('ZREM', slot.store, unpack(mine))
    end
  elseif slot.view and (slot.cut or rest) then
    -- @include redis
    redis.call('ZREM', slot.store, unpack(contents_of(page)))
  elseif slot.view and slot.view.tier then
    -- @include ties
    trim_turned(slot, slot.view)
  elseif highest_first then
    redis.call('ZREMRANGEBYRANK', slot.store, -size, -1)
  else
    redis.call('ZREMRANGEBYRANK', slot.store, 0, size - 1)
  end
  if peek and limit == 1 and taken == 1 then
    slot.first = second and tonumber(second) or false
  end
  slot.passed = slot.any and size - taken or nil
  tally(totals, 'delivered', taken)
  if taken == 0 then
    -- all of it is in flight: the search goes on, also where that has filled the room
    slot.room.left, slot.room.first, slot.assumed = left, first, {}
  end
  return items, slot.any and 0 or size - taken, ended and not slot.cut
end

-- Takes up to `limit` due messages, from a rank on: `start`, where the search before has ended, or 0. From the first
-- one on, most are taken by take_alike or take_fresh: these are for the common cases, and cost the server 20 to 40 %
-- less there than `take`, which can do all, and goes on behind what they have passed over. Returns contents and store
-- scores, alternating; the rank where a bound ended the search, 0 if none did; whether all that is due was seen; and the
-- score where all have the same, in which case there are contents alone. `peek`: as for take_alike; nil: nothing is
-- known.
local function take_due(slot, highest_first, limit, start, now_ms, stamp, max_retries, totals, peek)
  local items, alike, passed, ended
  if start == 0 and peek and peek[4] then
    items, alike, passed, ended = take_alike(slot, highest_first, limit, now_ms, stamp, max_retries, totals, peek)
  end
  if start == 0 and not items then
    items, passed, ended = take_fresh(slot, highest_first, limit, now_ms, stamp, max_retries, totals, peek)
  end
  items = items or {}
  local wanted, resume = alike and 0 or limit - #items / 2, 0
  if wanted > 0 and not ended and not (slot.cut and #items > 0) and has_room(slot) then
    -- @include take
    local others
    others, resume, ended = take(slot, highest_first, wanted, passed or start, now_ms, stamp, max_retries, totals)
    for i = 1, #others do
      items[#items + 1] = others[i]
    end
  end
  return items, resume, ended or false, alike
end
