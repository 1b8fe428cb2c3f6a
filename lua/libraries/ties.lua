-- The order among messages of equal priority where `ties` is `any`: each tier is handed over from a place on that the
-- stamp of the claim decides.

-- The place in a tier of `size` messages at which a claim begins, from 0. It follows from the claim's stamp alone, and
-- over many stamps all places are equally frequent. 67108859 is a prime, and cubes modulo it are a permutation; all
-- products are below 2^53, so they are exact.
local function place_of(view, size)
  if not view.share then
    local seed = view.stamp % 67108859
    view.share = seed * seed % 67108859 * seed % 67108859 * 41475557 % 67108859 / 67108859
  end
  return math.floor(view.share * size)
end

local function turn_tier(page, first, size, place)
  local front, at = {}, 2 * first - 1
  for i = 0, place - 1 do
    front[i] = page[at + 2 * i]
  end
  for i = at, at + 2 * (size - place - 1), 2 do
    page[i] = page[i + 2 * place]
  end
  at = at + 2 * (size - place)
  for i = 0, place - 1 do
    page[at + 2 * i] = front[i]
  end
end

-- Turns each tier of a page of contents and scores (alternating): its messages follow one another as before, but begin
-- at the place that the stamp says. Returns the number of the message with which the last tier begins, which is left
-- as it is where it is `open`: it has more messages than the page.
local function turn_tiers(page, view, open)
  local first, score, last = 1, page[2], #page
  for i = 4, last + 2, 2 do
    if page[i] ~= score then
      local size = i / 2 - first
      local place = size > 1 and not (open and i > last) and place_of(view, size) or 0
      if place > 0 then
        turn_tier(page, first, size, place)
      end
      if i <= last then
        first, score = i / 2, page[i]
      end
    end
  end
  return first
end

local function append_range(page, store, first, last)
  local part = redis.call('ZREVRANGE', store, first, last, 'WITHSCORES')
  if #page == 0 then
    return part
  end
  local before = #page
  for i = 1, #part do
    page[before + i] = part[i]
  end
  return page
end

-- Reads the next messages of a tier, up to `number`: from its `place` on, and after its end from its first one on.
-- `tier.first`: rank of its first message; `size`; `seen`: how many were read. They are appended to `page`.
local function read_tier(slot, tier, number, page)
  number = math.min(number, tier.size - tier.seen)
  local from = (tier.place + tier.seen) % tier.size
  local straight = math.min(number, tier.size - from)
  page = append_range(page, slot.store, tier.first + from, tier.first + from + straight - 1)
  if number > straight then
    page = append_range(page, slot.store, tier.first, tier.first + number - straight - 1)
  end
  tier.seen = tier.seen + number
  return page
end

local function open_tier(slot, view, first, score)
  local size = redis.call('ZCOUNT', slot.store, score, '+inf') - first
  return { first = first, size = size, place = place_of(view, size), seen = 0 }
end

-- Reads the next `size` messages of a topic with ties `any`: contents and store scores, alternating; fewer where store
-- ends. Tiers (messages with one score) come highest first. Each begins at a place that depends on the claim's stamp
-- and not on the contents, and goes on from its end to its first message: so a claim that ends within a tier of g
-- messages, and takes k of them, takes each with the chance k/g. `view` says what was read before: `stamp`; `rank`, up
-- to which all was read; and `tier`, which was read in part, nil for none. `view.tied`: the score of the first two
-- messages, where it is known that they have the same; their tier is counted before anything is read. Else one message
-- more than asked for tells whether the last tier goes on, and only then that one is counted.
local function read_turned(slot, view, size)
  local before = {}
  if view.tied then
    local tier = open_tier(slot, view, 0, view.tied)
    view.tier, view.tied = tier.size > size and tier or nil, nil
  end
  if view.tier then
    before = read_tier(slot, view.tier, size, before)
    if view.tier.seen < view.tier.size then
      return before
    end
    view.rank, view.tier = view.tier.first + view.tier.size, nil
    size = size - #before / 2
    if size == 0 then
      return before
    end
  end
  local page = redis.call('ZREVRANGE', slot.store, view.rank, view.rank + size, 'WITHSCORES')
  local score = page[2 * size]
  local open = score and page[2 * size + 2] == score
  page[2 * size + 1], page[2 * size + 2] = nil, nil
  local first = turn_tiers(page, view, open)
  if open then
    view.rank = view.rank + first - 1
    view.tier = open_tier(slot, view, view.rank, score)
    for i = 2 * size, 2 * first - 1, -1 do
      page[i] = nil
    end
    page = read_tier(slot, view.tier, size - first + 1, page)
  else
    view.rank = view.rank + #page / 2
  end
  if #before == 0 then
    return page
  end
  for i = 1, #page do
    before[#before + 1] = page[i]
  end
  return before
end

-- Removes from store all that was read in a view: two ranges of ranks, the one that lies further back first.
local function trim_turned(slot, view)
  local upto, tier = view.rank, view.tier
  if tier then
    local beyond = math.max(0, tier.place + tier.seen - tier.size)
    local from = tier.first + tier.place
    redis.call('ZREMRANGEBYRANK', slot.store, beyond - from - tier.seen, -from - 1)
    upto = tier.first + beyond
  end
  if upto > 0 then
    redis.call('ZREMRANGEBYRANK', slot.store, -upto, -1)
  end
end
