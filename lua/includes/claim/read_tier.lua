-- Reads the next messages of a tier, up to `number`: from its `place` on, and after its end from its first one on.
-- `tier.first`: rank of its first message; `size`; `seen`: how many were read. They are appended to `page`.
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
