-- Count the next entries of a slot, to plan a batch of a query that follows it; hands none of them over.
--
-- KEYS[1]  store  STREAM
-- KEYS[2]  meta   HASH  totals, size of the largest entry
-- KEYS[3]  group  HASH  began, totals
-- ARGV[1]  group       its name
-- ARGV[2]  after       id of the entry before the first one
-- ARGV[3]  upto        id of the last entry, or `+`
-- ARGV[4]  limit       most entries, 1 to 1,000
-- ARGV[5]  most_bytes  most bytes of their fields
-- ARGV[6]  any_size    '1': the first entry may have any size; else '0'
-- Returns: { id that the group stands at, '' where it is not; id of the last entry counted or ''; number; bytes; '1' if
--   there are more, else '0'; entries that were ever there for the group or '' }
-- Errors: none of its own
-- Complexity: O(log N + limit)
-- Notes: reads only. At most about 4 MiB are read at a time.
-- @include redis, stream_groups

local store, meta, group = KEYS[1], KEYS[2], KEYS[3]
local name, after, upto, limit, left = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local any_size = ARGV[6] == '1'

local _, mine = groups_of(store, name)
if not mine or redis.call('HGET', group, 'paused') == '1' then
  return { mine and mine[8] or '', '', '0', '0', '0', '' }
end
local sent = counts_of_group(meta, group)
local known = tonumber(redis.call('HGET', meta, 'largest') or 0)
local number, bytes, largest, piece, last, more = 0, 0, math.max(1, known), 256, '', true
while more and number < limit and bytes < 4194304 do
  local wanted = math.max(1, math.min(piece, limit - number, math.floor((4194304 - bytes) / largest)))
  local page = redis.call('XRANGE', store, '(' .. (last ~= '' and last or after), upto, 'COUNT', wanted)
  for _, entry in ipairs(page) do
    local size = 0
    for _, value in ipairs(entry[2]) do
      size = size + #value
    end
    if bytes + size > left and (number > 0 or not any_size) then
      return { mine[8], last, whole(number), whole(bytes), '1', sent }
    end
    number, bytes, largest, last = number + 1, bytes + size, math.max(largest, size), entry[1]
  end
  more = #page == wanted
end
if more then
  more = #redis.call('XRANGE', store, '(' .. last, upto, 'COUNT', 1) > 0
end
return { mine[8], last, whole(number), whole(bytes), more and '1' or '0', sent }
