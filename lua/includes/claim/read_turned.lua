-- Reads the next `size` messages of a topic with ties `any`: contents and store scores, alternating; fewer where store
-- ends. Tiers (messages with one score) come highest first. Each begins at a place that depends on the claim's stamp
-- and not on the contents, and goes on from its end to its first message: so a claim that ends within a tier of g
-- messages, and takes k of them, takes each with the chance k/g. `view` says what was read before: `stamp`; `rank`, up
-- to which all was read; and `tier`, which was read in part, nil for none. One message more than asked for tells
-- whether the last tier goes on: only then its size is counted. `found`: the first size + 1 messages, where known.
-- @include read_tier
-- @include turn_tiers
local function read_turned(slot, view, size, found)
  local before = {}
  if view.tier then
    read_tier(slot, view.tier, size, before)
    if view.tier.seen < view.tier.size then
      return before
    end
    view.rank, view.tier = view.tier.first + view.tier.size, nil
    size = size - #before / 2
    if size == 0 then
      return before
    end
  end
  local page = found or redis.call('ZREVRANGE', slot.store, view.rank, view.rank + size, 'WITHSCORES')
  local open = #page > 2 * size and page[2 * size] == page[2 * size + 2]
  page[2 * size + 1], page[2 * size + 2] = nil, nil
  local first = turn_tiers(page, view.stamp, open)
  if open then
    local score = page[2 * size]
    local tier = { first = view.rank + first - 1, seen = 0 }
    tier.size = redis.call('ZCOUNT', slot.store, score, '+inf') - tier.first
    tier.place = place_of(view.stamp, tier.size)
    for i = 2 * size, 2 * first - 1, -1 do
      page[i] = nil
    end
    read_tier(slot, tier, size - first + 1, page)
    view.rank, view.tier = tier.first, tier
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
