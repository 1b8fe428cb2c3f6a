-- Reads a page of a sorted set by ranks, with scores: up to `limit` messages, and not many more than 4 MiB of contents.
-- Of these it reads the bodies from a hash, as many as have 4 MiB with their contents, one at least. It reads piece by
-- piece, since how large they are shows only then. Returns the page, its contents, their bodies (false for none; an
-- empty table where none has one), and whether bytes ended it.
-- @include bodies_within
local function read_within(command, zset, hash, start, limit)
  local page, contents, left, more = {}, {}, 4194304, true
  while more and #contents < limit and left > 0 do
    local wanted, first = math.min(limit - #contents, 128), start + #contents
    local piece = redis.call(command, zset, first, first + wanted - 1, 'WITHSCORES')
    for i = 1, #piece, 2 do
      page[#page + 1], page[#page + 2] = piece[i], piece[i + 1]
      contents[#contents + 1] = piece[i]
      left = left - #piece[i]
    end
    more = #piece == 2 * wanted
  end
  local bodies, number = bodies_within(hash, contents, 4194304)
  more = more and #contents < limit or number < #contents
  return { unpack(page, 1, 2 * number) }, { unpack(contents, 1, number) }, bodies, more
end
