-- Read a page of a group's dead in one slot, with their reasons and fields.
--
-- KEYS[1]  dead       ZSET  id -> time of death, ms
-- KEYS[2]  reason     HASH  id -> why it died, JSON
-- KEYS[3]  dead_body  HASH  id -> fields of the dead, packed
-- ARGV[1]  start  rank of the first, the longest dead being 0
-- ARGV[2]  limit  most of them, 1 to 1,000; fewer are read where they have more than 4 MiB
-- Returns: { id, time of death, reason or '', { field, value, ... } } per entry; empty at the end
-- Errors: none of its own
-- Complexity: O(log N + n)
-- Notes: reads only.
-- @include stream_groups

local dead, reason, dead_body = KEYS[1], KEYS[2], KEYS[3]
local start, limit = tonumber(ARGV[1]), tonumber(ARGV[2])

return dead_entries(dead, reason, dead_body, start, limit)
