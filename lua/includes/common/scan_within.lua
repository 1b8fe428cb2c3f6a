-- Goes over about `count` messages of a sorted set from a cursor on, but not over many more than `most_bytes` of
-- contents: piece by piece, since how large they are shows only then. `pattern`: only those that match. Returns the
-- next cursor, and contents and scores, alternating.
local function scan_within(zset, cursor, pattern, count, most_bytes)
  local found, left = {}, most_bytes
  for first = 1, count, 128 do
    local page = redis.call('ZSCAN', zset, cursor, 'MATCH', pattern, 'COUNT', math.min(128, count - first + 1))
    cursor = page[1]
    for i = 1, #page[2], 2 do
      found[#found + 1] = page[2][i]
      found[#found + 1] = page[2][i + 1]
      left = left - #page[2][i]
    end
    if cursor == '0' or left <= 0 then
      break
    end
  end
  return cursor, found
end
