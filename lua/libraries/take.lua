-- Takes due messages from store to prepare. Invariant: prepare is written before store is trimmed, and a content that
-- is in flight is skipped.
-- @include totals, redis, room

-- Reads a part of what is due, from a rank on, in the order of delivery: contents and store scores, alternating.
-- `slot.view`: order and place of what is read where ties are `any`; then each part follows the one before.
local function read_page(slot, highest_first, rank, size, upto)
  if slot.view then
    -- @include ties
    return read_turned(slot, slot.view, size)
  elseif highest_first then
    return redis.call('ZREVRANGE', slot.store, rank, rank + size - 1, 'WITHSCORES')
  end
  return redis.call('ZRANGEBYSCORE', slot.store, '-inf', upto, 'WITHSCORES', 'LIMIT', rank, size)
end

-- Moves what is claimed from store to prepare: `contents`, and `items` with their store scores, alternating.
-- `in_front`: these are the first in store.
local function move_claimed(slot, highest_first, contents, items, in_front, stamp, max_retries, totals)
  local fresh = whole(stamp * 1000 + max_retries)
  local begun = begin_skiplist(slot.prepare, #contents, '0', string.format('%065.0f', stamp))
  local has_retries = not slot.quiet and redis.call('ZCARD', slot.retry) > 0
  for first = 1, #contents, 1000 do
    local last = math.min(first + 999, #contents)
    local claims = {}
    for i = first, last do
      local score = tonumber(items[2 * i])
      local left = math.max(0, math.ceil(score) - 1) -- of a score put in by hand, too
      claims[#claims + 1] = score > max_retries and fresh or whole(stamp * 1000 + left)
      claims[#claims + 1] = contents[i]
    end
    redis.call('ZADD', slot.prepare, unpack(claims))
    if has_retries then
      tally(totals, 'merged', redis.call('ZREM', slot.retry, unpack(contents, first, last)))
    end
    if not in_front then
      redis.call('ZREM', slot.store, unpack(contents, first, last))
    end
  end
  if begun then
    end_skiplist(slot.prepare, '0')
  end
  if #contents > 0 and in_front then
    if highest_first then
      redis.call('ZREMRANGEBYRANK', slot.store, -#contents, -1)
    else
      redis.call('ZREMRANGEBYRANK', slot.store, 0, #contents - 1)
    end
  end
  tally(totals, 'delivered', #contents)
end

-- Claims up to `limit` due messages: lowest due time first, or highest priority first. What is in prepare is skipped:
-- one content is never in two hands; the search goes on behind it, over up to about 2,000 entries from rank `start`, or
-- 8 MiB of contents, and as far as `fits` allows. `slot.outlived` notes, in the table of what is in flight, what else
-- is to be passed over. Returns contents and store scores (alternating), the rank where a bound ended the search (0 if
-- none did), and whether all that is due was seen. Where ties are `any` (`slot.any`), a search from the start follows
-- the claim's stamp, see `read_turned`. A search that a bound ended goes on without that, since only then nothing is
-- left out; its `start` is the rank + 1.
local function take(slot, highest_first, limit, start, now_ms, stamp, max_retries, totals)
  local items, contents = {}, {}
  slot.cut = false
  slot.view = slot.any and start == 0 and { stamp = stamp, rank = 0 }
  local in_flight = redis.call('ZCARD', slot.prepare) > 0
  local shift = slot.any and start > 0 and 1 or 0
  local begin = start - shift
  local rank, skipped, ended = begin, 0, false
  local piece, left_bytes = slot.piece, 8388608
  local upto = string.format('%.0f', now_ms)
  while #contents < limit and rank - begin < 1000 and left_bytes > 0 do
    local size = math.min(skipped > 0 and 1000 or limit - #contents + (slot.passed or 0), piece)
    local page = read_page(slot, highest_first, rank, size, upto)
    local names, bytes = {}, 0
    for i = 1, #page, 2 do
      names[#names + 1] = page[i]
      bytes = bytes + #page[i]
    end
    left_bytes, piece = left_bytes - bytes, bytes > 1024 * #names and 64 or 256
    local held = in_flight and #names > 0 and redis.call('ZMSCORE', slot.prepare, unpack(names))
    if slot.outlived and #names > 0 then
      held = slot.outlived(names, page, held or {})
    end
    local seen = 0
    while seen < #names and #contents < limit do
      local i = seen + 1
      if not (held and held[i]) and not fits(slot, names[i]) then
        slot.cut = true
        break
      end
      seen = i
      rank = rank + 1
      if held and held[i] then
        skipped = skipped + 1
      else
        contents[#contents + 1] = names[i]
        items[#items + 1] = names[i]
        items[#items + 1] = page[2 * i]
      end
    end
    ended = #names < size and seen == #names
    if ended or slot.cut then
      break
    end
  end
  local in_front = skipped == 0 and start == 0 and not slot.view
  move_claimed(slot, highest_first, contents, items, in_front, stamp, max_retries, totals)
  local done = ended or #contents == limit or (slot.cut and #contents > 0)
  if done or (slot.view and slot.cut) then
    return items, 0, ended
  elseif slot.view then
    return items, math.max(0, slot.view.rank - #contents) + 1, ended
  end
  return items, rank - #contents + shift, ended
end

local function take_between(slot, limit, start, before, now_ms, stamp, max_retries, totals)
  local items, resume = take(slot, false, limit, 0, max_retries, stamp, max_retries, totals), 0
  if #items < 2 * limit and not slot.cut and has_room(slot) then
    local younger
    start = math.max(start - #items / 2, redis.call('ZCOUNT', slot.store, '-inf', '(' .. whole(before)))
    younger, resume = take(slot, false, limit - #items / 2, start, now_ms, stamp, max_retries, totals)
    for i = 1, #younger do
      items[#items + 1] = younger[i]
    end
  end
  return items, resume
end

local function take_by_birth(slot, limit, before, stamp, max_retries, totals)
  local names = redis.call('ZRANGEBYSCORE', slot.born, whole(before), '+inf', 'LIMIT', 0, 256)
  local items, contents, order = {}, {}, {}
  if #names == 0 then
    return items
  end
  local scores = redis.call('ZMSCORE', slot.store, unpack(names))
  local held = redis.call('ZMSCORE', slot.prepare, unpack(names))
  for i = 1, #names do
    if scores[i] and not held[i] then
      order[#order + 1] = i
    end
  end
  table.sort(order, function(a, b)
    local one, other = tonumber(scores[a]), tonumber(scores[b])
    return one > other or one == other and a < b
  end)
  for _, i in ipairs(order) do
    if #contents == limit or not fits(slot, names[i]) then
      break
    end
    contents[#contents + 1] = names[i]
    items[#items + 1], items[#items + 2] = names[i], scores[i]
  end
  move_claimed(slot, true, contents, items, false, stamp, max_retries, totals)
  return items
end

-- Claims while messages stand in store that have outlived their time to live, and that this call could not bury yet:
-- what was rolled back, which has no such time, and what is younger. On time topics the outlived stand between these.
-- On PRIORITY they stand among them: where the first ones in store are all outlived, the younger ones are found by
-- `born`, the highest priorities of the 256 that have waited for longest. Returns contents and store scores,
-- alternating, and the rank where a bound ended the search, as `take` does: the next one begins there, at `start`.
local function take_unexpired(slot, limit, start, ttl_ms, now_ms, stamp, max_retries, totals)
  local before = now_ms - ttl_ms
  if not slot.born then
    return take_between(slot, limit, start, before, now_ms, stamp, max_retries, totals)
  end
  slot.outlived = function(names, page, held)
    local births = redis.call('ZMSCORE', slot.born, unpack(names))
    for i = 1, #names do
      if births[i] and tonumber(births[i]) < before and tonumber(page[2 * i]) > max_retries then
        held[i] = births[i]
      end
    end
    return held
  end
  local items, resume = take(slot, true, limit, start, now_ms, stamp, max_retries, totals)
  if #items == 0 and has_room(slot) then
    items = take_by_birth(slot, limit, before, stamp, max_retries, totals)
  end
  return items, resume
end
