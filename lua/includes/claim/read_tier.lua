-- Appends to `page` the next messages of a tier, up to `number`: from its `place` on, and after its end from its first
-- one on. `tier.first`: rank of its first message; `size`; `seen`: how many were read.
local function append_range(page, store, first, last)
  for _, part in ipairs(redis.call('ZREVRANGE', store, first, last, 'WITHSCORES')) do
    page[#page + 1] = part
  end
end

local function read_tier(slot, tier, number, page)
  number = math.min(number, tier.size - tier.seen)
  local from = (tier.place + tier.seen) % tier.size
  local straight = math.min(number, tier.size - from)
  append_range(page, slot.store, tier.first + from, tier.first + from + straight - 1)
  if number > straight then
    append_range(page, slot.store, tier.first, tier.first + number - straight - 1)
  end
  tier.seen = tier.seen + number
end
