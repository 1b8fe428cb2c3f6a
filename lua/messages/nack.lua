-- Nack claimed messages of one slot: back to store, to retry with a delay, to dead, or released as if never claimed.
--
-- KEYS[1]   store      ZSET  content -> score
-- KEYS[2]   prepare    ZSET  content -> claim score
-- KEYS[3]   retry      ZSET  content -> retry score
-- KEYS[4]   dead       ZSET  content -> time of death, ms
-- KEYS[5]   body       HASH  content -> body
-- KEYS[6]   meta       HASH  epoch, ensemble, paused, totals
-- KEYS[7]   error      HASH  content -> last failure, JSON
-- KEYS[8]   reason     HASH  content -> why it died, JSON
-- KEYS[9]   dead_body  HASH  content -> body of the dead
-- KEYS[10]  wake       channel
-- KEYS[11]  born?      ZSET  content -> time of its last send, ms; only for PRIORITY with a time to live
-- KEYS[12]  held?      HASH  content -> record in flight; only where the topic merges
-- ARGV[1]   epoch         whole number; 0 without ZooKeeper
-- ARGV[2]   ensemble      identity of the ZooKeeper ensemble; empty without
-- ARGV[3]   max_retries   0 to 999
-- ARGV[4]   max_dead_age_ms  ms
-- ARGV[5]   max_dead      most dead in this slot
-- ARGV[6]   publish       command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[7..] nacks  see settle_nacks
-- Returns: { contents whose claim was no longer ours, how many of the messages were looked at }: fewer than were named
--   where those before have used up what a call may move; the others are as they were
-- Errors: RMQ_FENCED stored_epoch epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written
-- Complexity: O(n log N)
-- Notes: compare-and-set on the claim score: a stale nack changes nothing. Never repeated after a lost reply.
-- @include write_totals
-- @include read_clock
-- @include check_fence
-- @include begin_write
-- @include measure
-- @include settle_nacks
-- @include trim_dead
-- @include hint
-- @include with_keys

local slot = with_keys({
  store = KEYS[1], prepare = KEYS[2], retry = KEYS[3], dead = KEYS[4], body = KEYS[5], meta = KEYS[6],
  error = KEYS[7], reason = KEYS[8], dead_body = KEYS[9], budget = { bytes = 4194304 },
}, { KEYS[11], KEYS[12] })
local wake = KEYS[10]
local epoch, ensemble, max_retries = ARGV[1], ARGV[2], tonumber(ARGV[3])
local max_dead_age, max_dead, publish = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]

local now_ms = read_clock()
local refusal, newer = check_fence(slot.meta, epoch, ensemble)
if refusal then
  return refusal
end
measure(slot)
if slot.born then
  redis.call('ZCARD', slot.born)
end

local totals, stale = {}, {}
begin_write(slot, newer, epoch, ensemble)
local _, back, done = settle_nacks(slot, 7, now_ms, max_retries, totals, stale)
trim_dead(slot, now_ms, max_dead_age, max_dead, totals)
write_totals(slot.meta, totals)
if back > 0 then
  hint(publish, wake, '0')
end
return { stale, done }
