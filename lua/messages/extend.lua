-- Renew the leases of claimed messages of one slot: they count from now again.
--
-- KEYS[1]  store    ZSET  content -> score; takes the first, empty write only
-- KEYS[2]  prepare  ZSET  content -> claim score
-- KEYS[3]  meta     HASH  epoch, ensemble, paused, stamp, lease, totals
-- ARGV[1]  epoch     whole number; 0 without ZooKeeper
-- ARGV[2]  ensemble  identity of the ZooKeeper ensemble; empty without
-- ARGV[3]  lease_ms  ms
-- ARGV[4..] claims  claim score and content, alternating
-- Returns: { now_ms, '1' or '0' per message: renewed, or no longer ours; stamp }
-- Errors: RMQ_FENCED stored_epoch epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written
-- Complexity: O(n log N)
-- Notes: the new claim score is a stamp of its own x 1000 + the same retries left. Compare-and-set.
-- @include clock, fence, redis

local slot = { store = KEYS[1], prepare = KEYS[2], meta = KEYS[3] }
local epoch, ensemble, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local now_ms = read_clock()
local refusal, newer, _, stored = check_fence(slot.meta, epoch, ensemble, true)
if refusal then
  return refusal
end
redis.call('ZCARD', slot.store)
redis.call('ZCARD', slot.prepare)

begin_write(slot, newer, epoch, ensemble)
local clock = read_slot_clock(stored[4], stored[5], now_ms, lease_ms)
local stamp, renewed, flags = next_stamp(slot, clock, now_ms), false, {}
for first = 4, #ARGV, 2000 do
  local contents, renewals = {}, {}
  for i = first + 1, math.min(first + 1999, #ARGV), 2 do
    contents[#contents + 1] = ARGV[i]
  end
  local scores = redis.call('ZMSCORE', slot.prepare, unpack(contents))
  for i, content in ipairs(contents) do
    local claim_score = ARGV[first + 2 * i - 2]
    local mine = scores[i] == claim_score
    if mine then
      renewals[#renewals + 1] = whole(stamp * 1000 + tonumber(claim_score) % 1000)
      renewals[#renewals + 1] = content
    end
    flags[#flags + 1] = mine and '1' or '0'
  end
  if renewals[1] then
    redis.call('ZADD', slot.prepare, 'XX', unpack(renewals))
    renewed = true
  end
end
if renewed then
  note_stamp(slot, clock, stamp, now_ms)
end
return { whole(now_ms), table.concat(flags), whole(stamp) }
