-- Forget what a streaming query has read of a chunk: another worker owns the slot, and this run of the batch goes
-- without it.
--
-- KEYS[1]  query       HASH  generation, acked, chunks
-- KEYS[2]  query_body  HASH  content -> body as it was claimed
-- ARGV[1]  generation  of the query's driver
-- ARGV[2]  seq         number of the batch, from 1
-- ARGV[3]  chunk       number of the chunk in this slot's part of the batch
-- ARGV[4]  keep_s      seconds for which an unused record is kept
-- Returns: how many messages the chunk had
-- Errors: RMQ_DRIVER generation of a newer driver; nothing was written
-- Complexity: O(n), n messages in the chunk
-- Notes: safe to repeat. It touches nothing of the slot, so that no owner is asked. Earlier drivers of the query are
--   shut out, and read the chunk no more. The claims stay until their leases end; then they are the owner's.
-- @include redis, spark_chunk

local query, query_body = KEYS[1], KEYS[2]
local generation, field, keep_s = tonumber(ARGV[1]), ARGV[2] .. ':' .. ARGV[3], ARGV[4]

local refusal = check_driver(query, generation)
if refusal then
  return refusal
end
local chunk = read_chunk(query, field)
redis.call('HLEN', query_body)
redis.call('HDEL', query, '') -- a removal first: it works at maxmemory
forget_chunk(query, query_body, field, chunk)
redis.call('HSET', query, 'generation', whole(generation))
redis.call('EXPIRE', query, keep_s)
return whole(chunk and #chunk.items / 2 or 0)
