-- Note that a streaming query refuses some messages of a chunk: the ack of its batch buries them, or has them wait.
--
-- KEYS[1]  meta   HASH  epoch, ensemble, paused
-- KEYS[2]  query  HASH  generation, acked, owner, chunks
-- ARGV[1]  generation     of the query's driver
-- ARGV[2]  seq            number of the batch, from 1
-- ARGV[3]  chunk          number of the chunk in this slot's part of the batch
-- ARGV[4]  verb           `bury` or `back`
-- ARGV[5]  delay_ms       `back`: wait before the retry, ms; else 0
-- ARGV[6]  error_type     why
-- ARGV[7]  error_message  why, in words
-- ARGV[8]  keep_s         seconds for which an unused record is kept
-- ARGV[9..] contents      at most 1,000
-- Returns: { noted, not of this chunk }
-- Errors: RMQ_DRIVER generation of a newer driver; RMQ_ACKED seq; RMQ_FENCED stored_epoch epoch, RMQ_ENSEMBLE
--   stored_ensemble; nothing was written
-- Complexity: O(n), n messages in the chunk
-- Notes: safe to repeat: of several refusals of a content the last one counts. What an earlier driver has refused is
--   forgotten when a later one reads the chunk: its run of the batch decides anew. The owner is the one under whose
--   epoch the query has last read or renewed in this slot. Where a newer owner has the slot, a batch that goes on
--   without lost messages does not hold them any more; a strict one is refused.
-- @include fence, redis, spark_chunk, spark_refuse

local meta, query = KEYS[1], KEYS[2]
local generation, seq, field = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[2] .. ':' .. ARGV[3]
local verb, delay_ms, error_type, error_message, keep_s = ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8]

local list, ours = redis.call('HGET', query, field), {}
local chunk = list and cmsgpack.unpack(list)
local late = check_batch(query, generation, seq)
if late then
  return late
end
local epoch, ensemble = query_owner(query)
local refusal = chunk and check_fence(meta, epoch, ensemble, true)
if refusal then
  if chunk.lenient and string.find(refusal.err, 'RMQ_FENCED', 1, true) then
    return { '0', whole(#ARGV - 8) }
  end
  return refusal
end
if chunk and chunk.generation == generation then
  for _, content in ipairs(contents_of(chunk.items)) do
    ours[content] = true
  end
end
local refused = read_refused(query, field) or { of = {}, hows = {} }
local number, noted = #refused.hows + 1, 0
for i = 9, #ARGV do
  if ours[ARGV[i]] then
    refused.of[ARGV[i]] = number
    noted = noted + 1
  end
end
if noted > 0 then
  refused.hows[number] = { verb, delay_ms, error_type, error_message }
  redis.call('HSET', query, refused_field(field), cmsgpack.pack(refused))
  redis.call('EXPIRE', query, keep_s)
end
return { whole(noted), whole(#ARGV - 8 - noted) }
