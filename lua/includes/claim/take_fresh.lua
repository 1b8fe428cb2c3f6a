-- The common case of `take`, at the server's lowest price: what is due was never rolled back. Returns contents and
-- store scores, alternating, how many entries were passed over because they are in flight, and whether all that is due
-- was seen; nothing at all, with nothing written, where the case is another. How large contents are shows only once
-- they are read: so no more than a piece is read before it is known whether they fit. `peek`: the first entries of
-- store, two at least, where they are known. Where ties are `any`, `take` looks for the rest from the first message on:
-- then 0 is returned for the number passed over, which is in `slot.passed`.
-- @include count
-- @include fits
-- @include read_page
-- @include into_prepare
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
      count(totals, 'merged', redis.call('ZREM', slot.retry, unpack(mine)))
      redis.call('ZREM', slot.store, unpack(mine))
    end
  elseif slot.view and (slot.cut or rest) then
    -- @include contents_of
    redis.call('ZREM', slot.store, unpack(contents_of(page)))
  elseif slot.view and slot.view.tier then
    -- @include trim_turned
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
  count(totals, 'delivered', taken)
  if taken == 0 then
    slot.room.first = true -- all of it is in flight: the search goes on, also where it has filled the room
  end
  return items, slot.any and 0 or size - taken, ended and not slot.cut
end
