-- Read a page of store, prepare or retry of one slot, in the order of their scores, with bodies.
--
-- KEYS[1]  zset  ZSET  content -> score
-- KEYS[2]  body  HASH  content -> body
-- ARGV[1]  order  `high`: highest score first; `low`: lowest first
-- ARGV[2]  start  rank of the first, from 0
-- ARGV[3]  limit  most messages, 0 to 1,000
-- Returns: { now_ms, { content, score, ... }, { body or nil, ... } }; the last one empty where no message has a body
-- Errors: none of its own
-- Complexity: O(log N + n)
-- Notes: reads only.
-- @include read_clock
-- @include whole

local zset, body = KEYS[1], KEYS[2]
local order, start, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local command = order == 'high' and 'ZREVRANGE' or 'ZRANGE'
local page = limit > 0 and redis.call(command, zset, start, start + limit - 1, 'WITHSCORES') or {}
local contents, bodies = {}, {}
for i = 1, #page, 2 do
  contents[#contents + 1] = page[i]
end
if #contents > 0 and redis.call('HLEN', body) > 0 then
  bodies = redis.call('HMGET', body, unpack(contents))
end
return { whole(read_clock()), page, bodies }
