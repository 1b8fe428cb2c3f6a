-- Claim from several slots of a topic at once, each as `claim` does: for servers where one script may touch them all.
--
-- KEYS[1..] slots  of each slot those of `claim`, in its order
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
-- ARGV[10..] claims  of each slot how many values follow; epoch, ensemble, limit, start, settlements: see `claim`
-- Returns: per slot the reply of `claim`, or the text of the error that it met; the other slots are served even so.
--   With limit -1 a slot may be settled only, and not swept; next_due_ms then tells of its store alone
-- Errors: none of its own; OOM can't occur, and a server that takes no writes refuses before anything is written
-- Complexity: O(the sum of the claims)
-- Notes: each slot is settled and claimed from as by a call of its own. Not to be repeated after a lost reply.
-- @include read_clock
-- @include claim_slot
-- @include with_base
-- @include with_keys
-- @include reply_of
-- @include write_refusal

local width, order = tonumber(ARGV[1]), ARGV[4]
local rules = {
  joined = true,
  lease_ms = tonumber(ARGV[2]), max_retries = tonumber(ARGV[3]), highest_first = order ~= 'low',
  sweep_limit = tonumber(ARGV[5]), max_dead_age = tonumber(ARGV[6]), max_dead = tonumber(ARGV[7]),
  room = { left = tonumber(ARGV[8]), first = true }, publish = ARGV[9],
  budget = { work = 48, most = 48, bytes = 4194304 },
}

local refusal = write_refusal(KEYS[#KEYS - width + 1])
if refusal then
  return refusal
end

local now_ms, now_s = read_clock()
local replies, at = {}, 10
for base = 0, #KEYS - width, width do
  local slot = {
    store = KEYS[base + 1], prepare = KEYS[base + 2], retry = KEYS[base + 3], dead = KEYS[base + 4],
    body = KEYS[base + 5], meta = KEYS[base + 6], error = KEYS[base + 7], reason = KEYS[base + 8],
    dead_body = KEYS[base + 9], any = order == 'any',
  }
  if width > 9 then
    with_keys(slot, { unpack(KEYS, base + 10, base + width) })
  end
  local last = at + tonumber(ARGV[at])
  local turn = {
    epoch = ARGV[at + 1], ensemble = ARGV[at + 2], limit = tonumber(ARGV[at + 3]), start = tonumber(ARGV[at + 4]),
    at = at + 5, last = last,
  }
  replies[#replies + 1] = with_base(reply_of(claim_slot, slot, rules, turn, now_ms, now_s), turn, slot.meta, 12)
  at = last + 1
end
return replies
