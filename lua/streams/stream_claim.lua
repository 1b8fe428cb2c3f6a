-- Claim entries of one slot, or of several slots at once, for a group, after settling the previous ones: first what has
-- to be delivered again.
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
-- KEYS[10..] slots  of each further slot the same, in this order
-- ARGV[1]   group         its name
-- ARGV[2]   consumer      name of this consumer
-- ARGV[3]   lease_ms      ms
-- ARGV[4]   max_retries   0 to 999
-- ARGV[5]   scan_limit    most pending entries to look at in a slot, 1 to 1,000; fewer where many slots look
-- ARGV[6]   max_dead_age_ms  ms
-- ARGV[7]   max_dead      most dead of the group in a slot
-- ARGV[8]   publish       command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[9]   piece         how many entries of a slot to read before their sizes are known, from 1
-- ARGV[10]  most_bytes    of fields and values to hand over in all; the first entry may have more
-- ARGV[11..] claims  of each slot how many values follow, and these:
--   epoch (whole number; 0 without ZooKeeper), ensemble (identity of the ZooKeeper ensemble; empty without)
--   limit: most entries to claim, 0 to 1,000; 0 and less settles only
--   own: 0, or: read new entries in a name of the claim's own, with this stamp at least: see holder_of
--   nacks, acks and whole claims to settle first: see settle_entries and settle_whole_reads
-- Returns: of each slot { now_ms, next_due_ms, swept, stale ids, entries, ids that were trimmed or deleted before they
--   were acked, ids and contents of further entries: first deliveries, with no other field; entries behind these;
--   scores of whole claims that have to be acked by name; stamp and number of the entries in the claim's own name, each
--   0 without; only where fewer nacks were looked at than were named, how many; and what an owner's tokens start from,
--   see with_base }. Entries are one flat table, since Redis sends each table of a table on its own: id, delivery count
--   (0: the first, in the claim's own name), how many values follow, field, value, ... Each table is false where it is
--   empty. A slot for which no bytes are left is due at once. Of several slots, the text of its error stands for a
--   slot's reply; the others are served even so
-- Errors: of a slot: RMQ_FENCED stored_epoch epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written to it. OOM can't
--   occur, and a server that takes no writes refuses before anything is written
-- Complexity: O((limit + settled + scan_limit) log N) of each slot
-- Notes: redeliveries get half of the room while there is something new, so that neither holds up the other; an owner
--   keeps the order and takes them first. A new owner takes nothing while a lease of one before runs. A group that is
--   gone with a lost stream begins anew at its first entry, though not for one who only settles. Each of several slots
--   may do less beside claiming. Not to be repeated after a lost reply: the lease settles it.
-- @include clock, fence, stream_claims

local joined = #KEYS > 9
local rules = {
  joined = joined, lease_ms = tonumber(ARGV[3]), max_retries = tonumber(ARGV[4]), scan_limit = tonumber(ARGV[5]),
  max_dead_age = tonumber(ARGV[6]), max_dead = tonumber(ARGV[7]), publish = ARGV[8], piece = tonumber(ARGV[9]),
  room = { left = tonumber(ARGV[10]) },
  budget = joined and { work = 48, most = 48, rows = 1024 } or { work = 64, most = 64, rows = math.huge },
}
local now_ms = read_clock()

-- Claims from the slot whose keys stand behind KEYS[base], as ARGV[at] and the values behind it say.
local function claim(base, at)
  local slot = {
    store = KEYS[base + 1], meta = KEYS[base + 2], retry = KEYS[base + 3], dead = KEYS[base + 4],
    error = KEYS[base + 5], reason = KEYS[base + 6], dead_body = KEYS[base + 7], wake = KEYS[base + 8],
    stream = KEYS[base + 9], group = ARGV[1], consumer = ARGV[2], left = {},
  }
  local turn = {
    epoch = ARGV[at + 1], ensemble = ARGV[at + 2], limit = tonumber(ARGV[at + 3]), own = tonumber(ARGV[at + 4]),
    at = at + 5,
  }
  return with_base(claim_entries(slot, rules, turn, now_ms), turn, slot.meta, 14)
end

if joined then
  -- @include fence
  return serve_slots(claim, 11, 9, KEYS[#KEYS - 6])
end
local reply = claim(0, 11)
return reply.err and reply or { reply }
