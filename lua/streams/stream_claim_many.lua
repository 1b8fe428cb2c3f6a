-- Claim from several slots at once for a group, each as `stream_claim` does: for servers where a script may touch all.
--
-- KEYS[1..] slots  of each slot those of `stream_claim`, in its order
-- ARGV[1]   width         number of keys of a slot: 9
-- ARGV[2]   group         its name
-- ARGV[3]   consumer      name of this consumer
-- ARGV[4]   lease_ms      ms
-- ARGV[5]   max_retries   0 to 999
-- ARGV[6]   scan_limit    most pending entries to look at in a slot, 1 to 1,000; fewer where many slots look
-- ARGV[7]   max_dead_age_ms  ms
-- ARGV[8]   max_dead      most dead of the group in a slot
-- ARGV[9]   publish       command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[10]  most_bytes    of fields and values to hand over in all; the first entry may have more
-- ARGV[11]  piece         how many entries of a slot to read before their sizes are known, from 1
-- ARGV[12..] claims  of each slot how many values follow; epoch, ensemble, limit, own, settlements: see `stream_claim`
-- Returns: per slot the reply of `stream_claim`, or the text of the error that it met; the other slots are served even
--   so. A slot for which no bytes are left is due at once
-- Errors: none of its own; OOM can't occur, and a server that takes no writes refuses before anything is written
-- Complexity: O(the sum of the claims)
-- Notes: each slot is settled and claimed from as by a call of its own. Not to be repeated after a lost reply.
-- @include read_clock
-- @include claim_entries
-- @include with_base
-- @include reply_of
-- @include write_refusal

local width, group, consumer = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local rules = {
  joined = true,
  lease_ms = tonumber(ARGV[4]), max_retries = tonumber(ARGV[5]), scan_limit = tonumber(ARGV[6]),
  max_dead_age = tonumber(ARGV[7]), max_dead = tonumber(ARGV[8]), publish = ARGV[9], piece = tonumber(ARGV[11]),
  room = { left = tonumber(ARGV[10]) }, budget = { work = 48, most = 48, rows = 1024 },
}

local refusal = write_refusal(KEYS[#KEYS - width + 3])
if refusal then
  return refusal
end

local now_ms = read_clock()
local replies, at = {}, 12
for base = 0, #KEYS - width, width do
  local slot = {
    store = KEYS[base + 1], meta = KEYS[base + 2], retry = KEYS[base + 3], dead = KEYS[base + 4],
    error = KEYS[base + 5], reason = KEYS[base + 6], dead_body = KEYS[base + 7], wake = KEYS[base + 8],
    stream = KEYS[base + 9], group = group, consumer = consumer, left = {},
  }
  local turn = {
    epoch = ARGV[at + 1], ensemble = ARGV[at + 2], limit = tonumber(ARGV[at + 3]), own = tonumber(ARGV[at + 4]),
    at = at + 5,
  }
  replies[#replies + 1] = with_base(reply_of(claim_entries, slot, rules, turn, now_ms), turn, slot.meta, 14)
  at = at + tonumber(ARGV[at]) + 1
end
return replies
