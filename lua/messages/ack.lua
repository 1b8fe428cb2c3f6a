-- Ack claimed messages of one slot: done, out of prepare.
--
-- KEYS[1]  store    ZSET  content -> score
-- KEYS[2]  prepare  ZSET  content -> claim score
-- KEYS[3]  body     HASH  content -> body
-- KEYS[4]  meta     HASH  epoch, ensemble, paused, totals
-- KEYS[5]  error    HASH  content -> last failure, JSON
-- KEYS[6]  held?    HASH  content -> record in flight; only where the topic merges
-- ARGV[1]  epoch     whole number; 0 without ZooKeeper
-- ARGV[2]  ensemble  identity of the ZooKeeper ensemble; empty without
-- ARGV[3..] acks  see settle_acks
-- Returns: contents whose claim was no longer ours; empty when all were acked
-- Errors: RMQ_FENCED stored_epoch epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written
-- Complexity: O(n log N)
-- Notes: compare-and-set on the claim score: a stale ack changes nothing. Never repeated after a lost reply.
-- @include write_totals
-- @include check_fence
-- @include begin_write
-- @include settle_acks
-- @include with_keys

local slot = with_keys({
  store = KEYS[1], prepare = KEYS[2], body = KEYS[3], meta = KEYS[4], error = KEYS[5],
}, { KEYS[6] })
local epoch, ensemble = ARGV[1], ARGV[2]

local refusal, newer = check_fence(slot.meta, epoch, ensemble)
if refusal then
  return refusal
end
for _, zset in ipairs({ slot.store, slot.prepare }) do
  redis.call('ZCARD', zset)
end
for _, hash in ipairs({ slot.body, slot.error, slot.held }) do
  redis.call('HLEN', hash)
end

local totals, stale = {}, {}
begin_write(slot, newer, epoch, ensemble)
settle_acks(slot, 3, totals, stale)
write_totals(slot.meta, totals)
return stale
