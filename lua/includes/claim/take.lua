-- Claims up to `limit` due messages: lowest due time first, or highest priority first. What is in prepare is
-- skipped: one content is never in two hands; the search goes on behind it, over up to 4,096 entries from rank
-- `start`. Returns contents and store scores (alternating), the rank where a bound ended the search (0 if none did),
-- and whether all that is due was seen.
local function take(slot, highest_first, limit, start, now_ms, now_s, max_retries, totals)
  local items, contents = {}, {}
  local in_flight = redis.call('ZCARD', slot.prepare) > 0
  local rank, skipped, ended = start, 0, false
  local upto = string.format('%.0f', now_ms)
  while #contents < limit and rank - start < 4096 do
    local size = math.min(skipped > 0 and 1000 or limit - #contents, 1000)
    local page
    if highest_first then
      page = redis.call('ZREVRANGE', slot.store, rank, rank + size - 1, 'WITHSCORES')
    else
      page = redis.call('ZRANGEBYSCORE', slot.store, '-inf', upto, 'WITHSCORES', 'LIMIT', rank, size)
    end
    local names = {}
    for i = 1, #page, 2 do
      names[#names + 1] = page[i]
    end
    local held = in_flight and #names > 0 and redis.call('ZMSCORE', slot.prepare, unpack(names))
    local seen = 0
    while seen < #names and #contents < limit do
      seen = seen + 1
      local i = seen
      rank = rank + 1
      if held and held[i] then
        skipped = skipped + 1
      else
        contents[#contents + 1] = names[i]
        items[#items + 1] = names[i]
        items[#items + 1] = page[2 * i]
      end
    end
    if #names < size and seen == #names then
      ended = true
      break
    end
  end
  local fresh = string.format('%.0f', now_s * 1000 + max_retries)
  local has_retries = not slot.quiet and redis.call('ZCARD', slot.retry) > 0
  for first = 1, #contents, 1000 do
    local last = math.min(first + 999, #contents)
    local claims = {}
    for i = first, last do
      local score = tonumber(items[2 * i])
      claims[#claims + 1] = score > max_retries and fresh or string.format('%.0f', now_s * 1000 + score - 1)
      claims[#claims + 1] = contents[i]
    end
    redis.call('ZADD', slot.prepare, unpack(claims))
    if has_retries then
      count(totals, 'merged', redis.call('ZREM', slot.retry, unpack(contents, first, last)))
    end
    if skipped > 0 or start > 0 then
      redis.call('ZREM', slot.store, unpack(contents, first, last))
    end
  end
  if #contents > 0 and skipped == 0 and start == 0 then
    if highest_first then
      redis.call('ZREMRANGEBYRANK', slot.store, -#contents, -1)
    else
      redis.call('ZREMRANGEBYRANK', slot.store, 0, #contents - 1)
    end
  end
  count(totals, 'delivered', #contents)
  return items, (ended or #contents == limit) and 0 or rank - #contents, ended
end
