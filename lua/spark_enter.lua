-- Begin to drive a streaming query: from now on calls of its earlier drivers are refused.
--
-- KEYS[1]  query  HASH  generation, acked, chunks; that of slot 0
-- ARGV[1]  keep_s  seconds for which an unused record is kept
-- Returns: { generation of this driver, sequence number of the last acked batch or '0', '1' if the query was known }
-- Errors: none of its own
-- Complexity: O(1)
-- Notes: begins with a removal, so that it works at maxmemory. Repeating it counts once more, which does no harm.
-- @include whole

local query, keep_s = KEYS[1], ARGV[1]

redis.call('HDEL', query, '')
local generation = redis.call('HINCRBY', query, 'generation', 1)
redis.call('EXPIRE', query, keep_s)
local acked = redis.call('HGET', query, 'acked')
return { whole(generation), acked or '0', generation > 1 and '1' or '0' }
