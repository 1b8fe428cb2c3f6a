-- Read a page of what a group has read and not acked in one slot.
--
-- KEYS[1]  store  STREAM
-- ARGV[1]  group     its name
-- ARGV[2]  first     id, `(` and id, such as the last one of the page before, or `-` for the first
-- ARGV[3]  limit     most entries, 1 to 1,000
-- ARGV[4]  consumer  only what this one holds; empty for all
-- ARGV[5]  idle_ms   only what was not claimed or renewed for so long, ms
-- Returns: { id, consumer, idle ms, delivery count } per entry; empty at the end
-- Errors: none of its own
-- Complexity: O(log N + n); of a consumer, O(consumers + n of each of its claims)
-- Notes: reads only. What claims hold in names of their own is their consumer's: see holder_of.
-- @include stream_ids, stream_groups

local store = KEYS[1]
local group, from, limit, consumer, idle_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

redis.call('XLEN', store)
local rows, names = {}, {}
if consumer == '' then
  rows = redis.pcall('XPENDING', store, group, 'IDLE', idle_ms, from, '+', limit)
  rows = rows.err and {} or rows
else
  names = redis.pcall('XINFO', 'CONSUMERS', store, group)
end
for _, found in ipairs(names.err and {} or names) do
  if belongs(found[2], consumer) and found[4] > 0 then
    for _, row in ipairs(redis.call('XPENDING', store, group, 'IDLE', idle_ms, from, '+', limit, found[2])) do
      rows[#rows + 1] = row
    end
  end
end
if consumer ~= '' then
  table.sort(rows, function(a, b) return padded_id(a[1]) < padded_id(b[1]) end)
end
return { unpack(rows, 1, tonumber(limit)) }
