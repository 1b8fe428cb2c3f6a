-- Claim due messages of one slot, after settling the previous ones and sweeping what nobody holds any more.
--
-- KEYS[1]   store      ZSET  content -> score
-- KEYS[2]   prepare    ZSET  content -> claim score
-- KEYS[3]   retry      ZSET  content -> retry score
-- KEYS[4]   dead       ZSET  content -> time of death, ms
-- KEYS[5]   body       HASH  content -> body
-- KEYS[6]   meta       HASH  epoch, ensemble, paused, stamp, lease, totals
-- KEYS[7]   error      HASH  content -> last failure, JSON
-- KEYS[8]   reason     HASH  content -> why it died, JSON
-- KEYS[9]   dead_body  HASH  content -> body of the dead
-- KEYS[10]  born?      ZSET  content -> time of its last send, ms; only for PRIORITY with a time to live
-- KEYS[11]  held?      HASH  content -> record in flight; only where the topic merges
-- ARGV[1]   epoch          whole number; 0 without ZooKeeper
-- ARGV[2]   ensemble       identity of the ZooKeeper ensemble; empty without
-- ARGV[3]   lease_ms       ms
-- ARGV[4]   max_retries    0 to 999
-- ARGV[5]   order          `high`: highest score first; `any`: the same, and equal scores in an order that the stamp
--   decides; `low`: lowest, and only those due
-- ARGV[6]   limit          most messages to claim, 0 to 1,000; 0 settles and sweeps only
-- ARGV[7]   start          where to search from: 0, or `resume` of the last claim
-- ARGV[8]   sweep_limit    most leases, and most retries, to sweep
-- ARGV[9]   max_dead_age_ms  ms
-- ARGV[10]  max_dead       most dead in this slot
-- ARGV[11]  most_bytes     of contents and bodies to hand over; the first message may have more
-- ARGV[12]  publish        command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[13..] settlements  nacks and acks to settle first: see settle_nacks and settle_acks; then whole claims to ack:
--   their number, and of each the claim score and how many it holds: see settle_whole; then, only where the
--   topic has one, the time to live in ms
-- Returns: { now_ms, next_due_ms, resume, swept, stale contents, { content, store score, ... }, { body or nil, ... },
--   claim scores of whole claims that must be acked by their contents, stamp of the claim, score or '', nacks, base };
--   the table of bodies is empty when no message of the slot has one. No message due: empty tables. With a score, all
--   messages had that one in store, and the table of contents and scores has contents alone. `nacks` is there only
--   where fewer nacks were looked at than were named: how many. `base`: see with_base.
-- Errors: RMQ_FENCED stored_epoch epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written
-- Complexity: O((limit + settled + swept) log N)
-- Notes: prepare is written before store is trimmed. Not to be repeated after a lost reply: the lease settles it.
-- @include read_clock
-- @include claim_slot
-- @include with_base
-- @include with_keys

local slot = with_keys({
  store = KEYS[1], prepare = KEYS[2], retry = KEYS[3], dead = KEYS[4], body = KEYS[5], meta = KEYS[6],
  error = KEYS[7], reason = KEYS[8], dead_body = KEYS[9],
}, { KEYS[10], KEYS[11] })
slot.any = ARGV[5] == 'any'
local turn = {
  epoch = ARGV[1], ensemble = ARGV[2], limit = tonumber(ARGV[6]), start = tonumber(ARGV[7]), at = 13, last = #ARGV,
}
local rules = {
  lease_ms = tonumber(ARGV[3]), max_retries = tonumber(ARGV[4]), highest_first = ARGV[5] ~= 'low',
  sweep_limit = tonumber(ARGV[8]), max_dead_age = tonumber(ARGV[9]), max_dead = tonumber(ARGV[10]),
  room = { left = tonumber(ARGV[11]), first = true }, publish = ARGV[12],
  budget = { work = 96, most = 96, bytes = 4194304 },
}

local now_ms, now_s = read_clock()
return with_base(claim_slot(slot, rules, turn, now_ms, now_s), turn, slot.meta, 12)
