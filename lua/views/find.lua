-- Read where one content is: in store, in flight, waiting for a retry, dead; it can be in several sections.
--
-- KEYS[1]  store      ZSET  content -> score
-- KEYS[2]  prepare    ZSET  content -> claim score
-- KEYS[3]  retry      ZSET  content -> retry score
-- KEYS[4]  dead       ZSET  content -> time of death, ms
-- KEYS[5]  body       HASH  content -> body
-- KEYS[6]  error      HASH  content -> last failure, JSON
-- KEYS[7]  reason     HASH  content -> why it died, JSON
-- KEYS[8]  dead_body  HASH  content -> body of the dead
-- KEYS[9]  held?      HASH  content -> record of what is in flight or waits; only where the topic merges
-- ARGV[1]  content  to look for
-- Returns: { now_ms, scores in store, prepare, retry and dead, body, last failure, reason, body of the dead, held };
--   each of them a table of one, or empty where there is none; held only where the topic merges
-- Errors: none of its own
-- Complexity: O(1), and the size of the bodies
-- Notes: reads only.
-- @include clock, redis

local zsets, hashes = { KEYS[1], KEYS[2], KEYS[3], KEYS[4] }, { KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9] }
local content = ARGV[1]

local found = { whole(read_clock()) }
for _, zset in ipairs(zsets) do
  found[#found + 1] = { redis.call('ZSCORE', zset, content) or nil }
end
for _, hash in ipairs(hashes) do
  found[#found + 1] = { redis.call('HGET', hash, content) or nil }
end
return found
