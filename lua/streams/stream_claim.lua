-- Claim entries of one slot for a group, after settling the previous ones: first what has to be delivered again.
--
-- KEYS[1]  store      STREAM
-- KEYS[2]  group      HASH  epoch, ensemble, paused, state of the pass over the pending list, totals
-- KEYS[3]  retry      ZSET  padded id -> due ms; 0 for at once
-- KEYS[4]  dead       ZSET  id -> time of death, ms
-- KEYS[5]  error      HASH  id -> last failure, JSON
-- KEYS[6]  reason     HASH  id -> why it died, JSON
-- KEYS[7]  dead_body  HASH  id -> fields of the dead, packed
-- KEYS[8]  wake       channel
-- KEYS[9]  meta       HASH  totals of the stream, sizes of its entries: largest, sized; stamp, the last one of a claim
-- ARGV[1]   epoch         whole number; 0 without ZooKeeper
-- ARGV[2]   ensemble      identity of the ZooKeeper ensemble; empty without
-- ARGV[3]   group         its name
-- ARGV[4]   consumer      name of this consumer
-- ARGV[5]   lease_ms      ms
-- ARGV[6]   max_retries   0 to 999
-- ARGV[7]   limit         most entries to claim, 0 to 1,000; 0 settles only
-- ARGV[8]   scan_limit    most pending entries to look at, 1 to 1,000
-- ARGV[9]   max_dead_age_ms  ms
-- ARGV[10]  max_dead      most dead of the group in this slot
-- ARGV[11]  publish       command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[12]  most_bytes    of fields and values to hand over; the first entry may have more
-- ARGV[13]  piece         how many entries to read before their sizes are known, from 1
-- ARGV[14]  own         0, or: read new entries in a name of the claim's own, with this stamp at least: see holder_of
-- ARGV[15..] settlements  nacks, acks and whole claims to settle first: see settle_entries and settle_whole_reads
-- Returns: { now_ms, next_due_ms, swept, stale ids, entries, ids that were trimmed or deleted before they were acked,
--   ids and contents of further entries: first deliveries, with no other field; entries behind these; scores of whole
--   claims that have to be acked by name; stamp and number of the entries in the claim's own name, each 0 without; only
--   where fewer nacks were looked at than were named, how many; and what an owner's tokens start from, see with_base }.
--   Entries are one flat table, since Redis sends each table of a table on its own: id, delivery count (0: the first,
--   in the claim's own name), how many values follow, field, value, ... Each table is false where it is empty.
-- Errors: RMQ_FENCED stored_epoch epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written
-- Complexity: O((limit + settled + scan_limit) log N)
-- Notes: redeliveries get half of the room while there is something new, so that neither holds up the other; an owner
--   keeps the order and takes them first. A new owner takes nothing while a lease of one before runs. A group that is
--   gone with a lost stream begins anew at its first entry, though not for one who only settles. Not to be repeated
--   after a lost reply: the lease settles it.
-- @include read_clock
-- @include claim_entries
-- @include with_base

local slot = {
  store = KEYS[1], meta = KEYS[2], retry = KEYS[3], dead = KEYS[4], error = KEYS[5], reason = KEYS[6],
  dead_body = KEYS[7], wake = KEYS[8], stream = KEYS[9], group = ARGV[3], consumer = ARGV[4], left = {},
}
local turn = { epoch = ARGV[1], ensemble = ARGV[2], limit = tonumber(ARGV[7]), own = tonumber(ARGV[14]), at = 15 }
local rules = {
  lease_ms = tonumber(ARGV[5]), max_retries = tonumber(ARGV[6]), scan_limit = tonumber(ARGV[8]),
  max_dead_age = tonumber(ARGV[9]), max_dead = tonumber(ARGV[10]), publish = ARGV[11], piece = tonumber(ARGV[13]),
  room = { left = tonumber(ARGV[12]) }, budget = { work = 64, most = 64, rows = math.huge },
}

return with_base(claim_entries(slot, rules, turn, (read_clock())), turn, slot.meta, 14)
