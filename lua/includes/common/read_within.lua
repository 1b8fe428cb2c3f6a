-- Reads a page of a sorted set by ranks, with scores: up to `limit` messages, and not many more than `most_bytes` of
-- contents. It reads piece by piece, since how large they are shows only then. Returns the page, and whether these
-- bytes ended it.
local function read_within(command, zset, start, limit, most_bytes)
  local page, left = {}, most_bytes
  while #page < 2 * limit and left > 0 do
    local wanted = math.min(limit - #page / 2, 128)
    local first = start + #page / 2
    local piece = redis.call(command, zset, first, first + wanted - 1, 'WITHSCORES')
    for i = 1, #piece, 2 do
      page[#page + 1] = piece[i]
      page[#page + 1] = piece[i + 1]
      left = left - #piece[i]
    end
    if #piece < 2 * wanted then
      return page, false
    end
  end
  return page, #page < 2 * limit
end
