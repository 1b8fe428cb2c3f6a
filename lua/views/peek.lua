-- Read a page of store, prepare or retry of one slot, in the order of their scores, with bodies.
--
-- KEYS[1]  zset  ZSET  content -> score
-- KEYS[2]  body  HASH  content -> body
-- ARGV[1]  order  `high`: highest score first; `low`: lowest first
-- ARGV[2]  start  rank of the first, from 0
-- ARGV[3]  limit  most messages, 0 to 1,000; fewer are read where they have more than 4 MiB
-- Returns: { now_ms, { content, score, ... }, { body or nil, ... }, '1' where fewer were read than are there, else
--   '0' }; the table of bodies is empty where no message has one
-- Errors: none of its own
-- Complexity: O(log N + n)
-- Notes: reads only.
-- @include clock, redis

local zset, body = KEYS[1], KEYS[2]
local order, start, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local command = order == 'high' and 'ZREVRANGE' or 'ZRANGE'
local page, _, bodies, more = read_within(command, zset, body, start, limit)
return { whole(read_clock()), page, bodies, more and '1' or '0' }
