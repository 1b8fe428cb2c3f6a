-- Read a page of the stream of one slot, without a group.
--
-- KEYS[1]  store  STREAM
-- KEYS[2]  meta   HASH  totals, size of the largest entry
-- ARGV[1]  first  id, `(` and id, or `-` for the first
-- ARGV[2]  last   id, `(` and id, or `+` for the last
-- ARGV[3]  limit  most entries, 1 to 1,000; fewer are read where they have more than about 4 MiB
-- ARGV[4]  order  `up`: oldest first; `down`: newest first
-- Returns: entries as { id, { field, value, ... } }; empty at the end
-- Errors: none of its own
-- Complexity: O(log N + n)
-- Notes: reads only. Entries are read in pieces: how large they are shows only then.

local store, meta = KEYS[1], KEYS[2]
local from, to, limit, down = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == 'down'

local known = tonumber(redis.call('HGET', meta, 'largest') or 0)
local found, left, largest, piece = {}, 4194304, 0, 8
while #found < limit and left > 0 do
  local wanted = math.min(piece, limit - #found)
  if largest > 0 then
    wanted = math.max(1, math.min(wanted, math.floor(left / largest)))
  end
  if known > 0 then
    wanted = math.min(wanted, math.max(4, math.floor(left / known)))
  end
  local page
  if down then
    page = redis.call('XREVRANGE', store, to, from, 'COUNT', wanted)
  else
    page = redis.call('XRANGE', store, from, to, 'COUNT', wanted)
  end
  for _, entry in ipairs(page) do
    local bytes = 0
    for _, value in ipairs(entry[2]) do
      bytes = bytes + #value
    end
    found[#found + 1] = entry
    left, largest = left - bytes, math.max(largest, bytes)
  end
  if #page < wanted then
    break
  end
  piece = 4 * piece
  local after = '(' .. page[#page][1]
  from, to = down and from or after, down and after or to
end
return found
