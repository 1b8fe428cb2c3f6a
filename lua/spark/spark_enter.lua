-- Begin to drive a streaming query: from now on calls of its earlier drivers are refused.
--
-- KEYS[1]  query  HASH  generation, acked, chunks; that of slot 0
-- ARGV[1]  keep_s  seconds for which an unused record is kept
-- ARGV[2]  needed  '1': a query that is not known is not begun; else '0'
-- Returns: { generation of this driver, sequence number of the last acked batch or '0', '1' if the query was known };
--   where it is needed and not known: generation '0', and nothing was written
-- Errors: none of its own
-- Complexity: O(1)
-- Notes: begins with a removal, so that it works at maxmemory. Repeating it counts once more, which does no harm. A
--   generation is at least the time in seconds: where this record was lost, the marks of earlier drivers in other slots
--   do not shut out the later ones.
-- @include clock, redis

local query, keep_s, needed = KEYS[1], ARGV[1], ARGV[2] == '1'

local _, now_s = read_clock()
redis.call('HDEL', query, '')
local known = redis.call('HGET', query, 'generation')
if needed and not known then
  return { '0', '0', '0' }
end
local generation = whole(math.max(tonumber(known or 0) + 1, now_s))
redis.call('HSET', query, 'generation', generation)
redis.call('EXPIRE', query, keep_s)
local acked = redis.call('HGET', query, 'acked')
return { generation, acked or '0', known and '1' or '0' }
