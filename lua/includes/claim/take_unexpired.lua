-- Claims while messages stand in store that have outlived their time to live, and that this call could not bury yet:
-- what was rolled back, which has no such time, and what is younger. On time topics the outlived stand between these.
-- On PRIORITY they stand among them: where the first ones in store are all outlived, the younger ones are found by
-- `born`, the highest priorities of the 256 that have waited for longest. Returns contents and store scores,
-- alternating.
-- @include take
-- @include whole
local function take_between(slot, limit, before, now_ms, stamp, max_retries, totals)
  local items = take(slot, false, limit, 0, max_retries, stamp, max_retries, totals)
  if #items < 2 * limit and not slot.cut and has_room(slot) then
    local first = redis.call('ZCOUNT', slot.store, '-inf', '(' .. whole(before))
    local younger = take(slot, false, limit - #items / 2, first, now_ms, stamp, max_retries, totals)
    for i = 1, #younger do
      items[#items + 1] = younger[i]
    end
  end
  return items
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

local function take_unexpired(slot, limit, ttl_ms, now_ms, stamp, max_retries, totals)
  local before = now_ms - ttl_ms
  if not slot.born then
    return take_between(slot, limit, before, now_ms, stamp, max_retries, totals)
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
  local items = take(slot, true, limit, 0, now_ms, stamp, max_retries, totals)
  if #items == 0 and has_room(slot) then
    return take_by_birth(slot, limit, before, stamp, max_retries, totals)
  end
  return items
end
