-- The case of `take_fresh` in which all that is taken has one score, as the messages of a batch mostly have: contents
-- are read and handed over without scores, whose digits are a third of what a claim costs. Only in a quiet slot, and
-- where messages have no record. `peek`: the first entries of store, two at least. Returns contents, their score, how
-- many were passed over because they are in flight, and whether all that is due was seen. If some were in flight:
-- contents and store scores, alternating, and false for the score. Nothing at all, with nothing written, where the case
-- is another. Where contents do not fit, `take_fresh` goes on from `slot.page`.
-- @include least_alike
-- @include count
-- @include whole
-- @include into_prepare
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
  slot.room.left, slot.room.first = slot.room.left - bytes, false
  local claims, fresh = {}, whole(stamp * 1000 + max_retries)
  for i = 1, number do
    claims[2 * i - 1] = fresh
    claims[2 * i] = names[i]
  end
  local taken = into_prepare(slot, claims, number, stamp)
  if taken == 0 then
    slot.room.first = true -- as in `take_fresh`
  end
  count(totals, 'delivered', taken)
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
