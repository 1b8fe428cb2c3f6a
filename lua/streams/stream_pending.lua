-- Read a page of what a group has read and not acked in one slot.
--
-- KEYS[1]  store  STREAM
-- ARGV[1]  group     its name
-- ARGV[2]  first     `-` for the first, or `(` and the last id of the page before
-- ARGV[3]  limit     most entries, 1 to 1,000
-- ARGV[4]  consumer  only what this one holds; empty for all
-- Returns: { id, consumer, idle ms, delivery count } per entry; empty at the end
-- Errors: none of its own
-- Complexity: O(log N + n)
-- Notes: reads only.

local store = KEYS[1]
local group, from, limit, consumer = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

redis.call('XLEN', store)
local only = consumer == '' and {} or { consumer }
local rows = redis.pcall('XPENDING', store, group, from, '+', limit, unpack(only))
return rows.err and {} or rows
