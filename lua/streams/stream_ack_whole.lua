-- Ack all entries of claims of one slot that have read new ones in names of their own.
--
-- KEYS[1]  store  STREAM
-- KEYS[2]  group  HASH  epoch, ensemble, paused, state of the pass over the pending list, totals
-- KEYS[3]  retry  ZSET  padded id -> due ms
-- ARGV[1]  epoch     whole number; 0 without ZooKeeper
-- ARGV[2]  ensemble  identity of the ZooKeeper ensemble; empty without
-- ARGV[3]  group     its name
-- ARGV[4]  consumer  name of this consumer
-- ARGV[5..] claims  how many; score and number of entries of each, alternating
-- Returns: scores of the claims that have to be acked by name; else empty
-- Errors: RMQ_FENCED stored_epoch epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written
-- Complexity: O(entries)
-- Notes: what `stream_claim` does with whole claims, and nothing else: it costs the server half as much.
-- @include check_fence
-- @include begin_write
-- @include settle_whole_reads
-- @include write_totals

local slot = { store = KEYS[1], meta = KEYS[2], retry = KEYS[3], group = ARGV[3], consumer = ARGV[4] }
local epoch, ensemble = ARGV[1], ARGV[2]

local refusal, newer = check_fence(slot.meta, epoch, ensemble)
if refusal then
  return refusal
end
local removed = redis.pcall('XPENDING', slot.store, slot.group, '-', '+', 1).err
redis.call('XLEN', slot.store)
local taken = tonumber(redis.call('HGET', slot.meta, 'taken') or 0)

local totals = {}
begin_write({ store = slot.retry, meta = slot.meta }, newer, epoch, ensemble)
local unmatched = settle_whole_reads(slot, 5, removed and math.huge or taken, totals)
write_totals(slot.meta, totals)
return unmatched
