-- Read a page of one slot's dead with their reasons and bodies.
--
-- KEYS[1]  dead       ZSET  content -> time of death, ms
-- KEYS[2]  reason     HASH  content -> why it died, JSON
-- KEYS[3]  dead_body  HASH  content -> body of the dead
-- ARGV[1]  start  rank of the first, the longest dead being 0
-- ARGV[2]  limit  most messages, 0 to 1,000; fewer are read where they have more than 4 MiB
-- Returns: { content, time of death, ... }, { reason or nil, ... }, { body or nil, ... }; empty tables at the end
-- Errors: none of its own
-- Complexity: O(log N + n)
-- Notes: reads only.
-- @include redis

local dead, reason, dead_body = KEYS[1], KEYS[2], KEYS[3]
local start, limit = tonumber(ARGV[1]), tonumber(ARGV[2])

local page, contents, bodies = read_within('ZRANGE', dead, dead_body, start, limit)
return { page, #contents > 0 and redis.call('HMGET', reason, unpack(contents)) or {}, bodies }
