-- The common case of `take`, at the server's lowest price: what is due was never rolled back, and nothing was claimed
-- in this slot in this second, so that one ZADD NX both claims and finds out whether something is in flight. Else only
-- `look` goes on: it finds that out before. Returns contents and store scores, alternating, how many entries were
-- passed over because they are in flight, and whether all that is due was seen; nothing at all, with nothing written,
-- where the case is another. `peek`: the first two entries of store, where they are known; if that is all that matters,
-- `slot.upcoming` then is the due time of the first one that is not due yet, false for none.
local function take_fresh(slot, highest_first, limit, now_ms, now_s, max_retries, totals, look, peek)
  if limit == 0 then
    return nil
  end
  local page
  local second = peek and peek[4]
  if peek and not (second and (highest_first or tonumber(second) <= now_ms)) then
    if peek[1] and (highest_first or tonumber(peek[2]) <= now_ms) then
      page, slot.upcoming = { peek[1], peek[2] }, second and tonumber(second) or false
    else
      page, slot.upcoming = {}, tonumber(peek[2]) or false
    end
  elseif highest_first then
    page = redis.call('ZREVRANGE', slot.store, 0, limit - 1, 'WITHSCORES')
  else
    local upto = string.format('%.0f', now_ms)
    page = redis.call('ZRANGEBYSCORE', slot.store, '-inf', upto, 'WITHSCORES', 'LIMIT', 0, limit)
  end
  local size = #page / 2
  if size == 0 then
    return page, 0, true
  end
  if tonumber(page[highest_first and 2 * size or 2]) <= max_retries then
    return nil
  end
  local fresh = string.format('%.0f', now_s * 1000 + max_retries)
  local unclear = not slot.unheld and redis.call('ZCOUNT', slot.prepare, fresh, fresh) > 0
  if unclear and not look then
    return nil
  end
  if unclear then
    local names = {}
    for i = 1, size do
      names[i] = page[2 * i - 1]
    end
    for _, held in ipairs(redis.call('ZMSCORE', slot.prepare, unpack(names))) do
      if held then
        return nil
      end
    end
  end
  local claims = {}
  for i = 1, 2 * size, 2 do
    claims[i] = fresh
    claims[i + 1] = page[i]
  end
  local items, taken = page, redis.call('ZADD', slot.prepare, 'NX', unpack(claims))
  local has_retries = not slot.quiet and redis.call('ZCARD', slot.retry) > 0
  if taken < size or has_retries then
    items = {}
    local names, mine = {}, {}
    for i = 1, size do
      names[i] = page[2 * i - 1]
    end
    local scores = redis.call('ZMSCORE', slot.prepare, unpack(names))
    for i = 1, size do
      if scores[i] == fresh then
        mine[#mine + 1] = names[i]
        items[#items + 1] = names[i]
        items[#items + 1] = page[2 * i]
      end
    end
    if #mine > 0 then
      count(totals, 'merged', redis.call('ZREM', slot.retry, unpack(mine)))
      redis.call('ZREM', slot.store, unpack(mine))
    end
  elseif highest_first then
    redis.call('ZREMRANGEBYRANK', slot.store, -size, -1)
  else
    redis.call('ZREMRANGEBYRANK', slot.store, 0, size - 1)
  end
  count(totals, 'delivered', taken)
  return items, size - taken, size < limit
end
