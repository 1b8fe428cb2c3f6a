-- Claim due messages of one slot of a topic, or of several slots at once, after settling the previous ones and sweeping
-- what nobody holds any more.
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
-- KEYS[12..] slots  of each further slot the same, in this order
-- ARGV[1]   width          number of keys of a slot: 9, and those that only some topics have
-- ARGV[2]   lease_ms       ms
-- ARGV[3]   max_retries    0 to 999
-- ARGV[4]   order          `high`: highest score first; `any`: the same, and equal scores in an order that the stamp
--   decides; `low`: lowest, and only those due
-- ARGV[5]   sweep_limit    most leases, and most retries, to sweep in a slot
-- ARGV[6]   max_dead_age_ms  ms
-- ARGV[7]   max_dead       most dead in a slot
-- ARGV[8]   most_bytes     of contents and bodies to hand over in all; the first message may have more
-- ARGV[9]   publish        command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[10..] claims  of each slot how many values follow, and these:
--   epoch (whole number; 0 without ZooKeeper), ensemble (identity of the ZooKeeper ensemble; empty without)
--   limit: most messages to claim, 0 to 1,000; 0 settles and sweeps only, -1 settles and need not sweep
--   start: where to search from, 0 or `resume` of the last claim
--   nacks and acks to settle first: see settle_nacks and settle_acks; then whole claims to ack: their number, and of
--   each the claim score and how many it holds: see settle_whole; then, only where the topic has one, the time to live
--   in ms
-- Returns: of each slot { now_ms, next_due_ms, resume, swept, stale contents, { content, store score, ... }, { body or
--   nil, ... }, claim scores of whole claims that must be acked by their contents, stamp of the claim, score or '',
--   nacks, base }; the table of bodies is empty when no message of the slot has one. No message due: empty tables. With
--   a score, all messages had that one in store, and the table of contents and scores has contents alone. `nacks` is
--   there only where fewer nacks were looked at than were named: how many. `base`: see with_base. A slot with limit -1
--   may be settled only, and next_due_ms then tells of its store alone. Of several slots, the text of its error stands
--   for a slot's reply; the others are served even so
-- Errors: of a slot: RMQ_FENCED stored_epoch epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written to it. OOM can't
--   occur, and a server that takes no writes refuses before anything is written
-- Complexity: O((limit + settled + swept) log N) of each slot
-- Notes: prepare is written before store is trimmed. Each of several slots may do half as much beside claiming. Not to
--   be repeated after a lost reply: the lease settles it.
-- @include clock, fence, claims

local width, order = tonumber(ARGV[1]), ARGV[4]
local joined = #KEYS >= 2 * width
local rules = {
  joined = joined, lease_ms = tonumber(ARGV[2]), max_retries = tonumber(ARGV[3]), highest_first = order ~= 'low',
  sweep_limit = tonumber(ARGV[5]), max_dead_age = tonumber(ARGV[6]), max_dead = tonumber(ARGV[7]),
  room = { left = tonumber(ARGV[8]), first = true }, publish = ARGV[9],
  budget = { work = joined and 48 or 96, most = joined and 48 or 96, bytes = 4194304 },
}
local now_ms, now_s = read_clock()

-- Claims from the slot whose keys stand behind KEYS[base], as ARGV[at] and the values behind it say.
local function claim(base, at)
  local slot = {
    store = KEYS[base + 1], prepare = KEYS[base + 2], retry = KEYS[base + 3], dead = KEYS[base + 4],
    body = KEYS[base + 5], meta = KEYS[base + 6], error = KEYS[base + 7], reason = KEYS[base + 8],
    dead_body = KEYS[base + 9], any = order == 'any',
  }
  if width > 9 then
    with_keys(slot, { unpack(KEYS, base + 10, base + width) })
  end
  local turn = {
    epoch = ARGV[at + 1], ensemble = ARGV[at + 2], limit = tonumber(ARGV[at + 3]), start = tonumber(ARGV[at + 4]),
    at = at + 5, last = at + tonumber(ARGV[at]),
  }
  return with_base(claim_slot(slot, rules, turn, now_ms, now_s), turn, slot.meta, 12)
end

if joined then
  -- @include fence
  return serve_slots(claim, 10, width, KEYS[#KEYS - width + 1])
end
local reply = claim(0, 10)
return reply.err and reply or { reply }
