-- Reads the next `size` messages of a topic with ties `any`: contents and store scores, alternating; fewer where store
-- ends. Tiers (messages with one score) come highest first. Each begins at a place that depends on the claim's stamp
-- and not on the contents, and goes on from its end to its first message: so a claim that ends within a tier of g
-- messages, and takes k of them, takes each with the chance k/g. `view` says what was read before: `stamp`; `rank`, up
-- to which all was read; and `tier`, which was read in part, nil for none. `view.tied`: the score of the first two
-- messages, where it is known that they have the same; their tier is counted before anything is read. Else one message
-- more than asked for tells whether the last tier goes on, and only then that one is counted.
-- @include read_tier
-- @include turn_tiers
local function open_tier(slot, view, first, score)
  local size = redis.call('ZCOUNT', slot.store, score, '+inf') - first
  return { first = first, size = size, place = place_of(view, size), seen = 0 }
end

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
