-- Renew the leases of a consumer's deliveries of one slot: they count from now again. No delivery is counted for it.
--
-- KEYS[1]  store  STREAM
-- KEYS[2]  group  HASH  epoch, ensemble, paused, state of the pass over the pending list, totals
-- KEYS[3]  retry  ZSET  padded id -> due ms
-- KEYS[4]  error  HASH  id -> last failure, JSON
-- ARGV[1]  epoch     whole number; 0 without ZooKeeper
-- ARGV[2]  ensemble  identity of the ZooKeeper ensemble; empty without
-- ARGV[3]  group     its name
-- ARGV[4]  consumer  name of this consumer
-- ARGV[5..] claims  score (see holder_of) and id, alternating, at most 256 pairs
-- Returns: { now_ms, '1' or '0' per delivery: renewed, or no longer ours }
-- Errors: RMQ_FENCED stored_epoch epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written
-- Complexity: O(n log N)
-- Notes: compare-and-set on consumer and delivery count. From Redis 7 on, an entry that was trimmed or deleted leaves
--   the pending list with its renewal: it is counted as lost, and no longer ours. Of a group that was removed nothing
--   is.
-- @include clock, fence, totals, redis, stream_groups, stream_settlements

local slot = {
  store = KEYS[1], meta = KEYS[2], retry = KEYS[3], error = KEYS[4], group = ARGV[3], consumer = ARGV[4], left = {},
}
local epoch, ensemble = ARGV[1], ARGV[2]

local now_ms = read_clock()
local refusal, newer = check_fence(slot.meta, epoch, ensemble)
if refusal then
  return refusal
end
redis.call('XLEN', slot.store)
redis.call('ZCARD', slot.retry)
redis.call('HLEN', slot.error)
local removed = redis.pcall('XPENDING', slot.store, slot.group, '-', '+', 1).err

begin_write({ store = slot.retry, meta = slot.meta }, newer, epoch, ensemble)
local flags, totals, at = {}, {}, 5
while at < #ARGV do
  local score, ids = ARGV[at], {}
  while ARGV[at] == score do -- those of a claim stand side by side
    ids[#ids + 1] = ARGV[at + 1]
    at = at + 2
  end
  local holder, deliveries, own = holder_of(slot, tonumber(score))
  local counts = removed and {} or held_counts(slot, ids, holder)
  for _, id in ipairs(ids) do
    local mine = counts[id] == deliveries
    if mine and #redis.call('XCLAIM', slot.store, slot.group, holder, '0', id, 'JUSTID') == 0 then
      mine = false
      lose_entry(slot, id, totals, {})
      slot.left[holder] = own
    end
    flags[#flags + 1] = mine and '1' or '0'
  end
end
if totals.lost then
  note_taken(slot, redis.call('HGET', slot.meta, 'stamp'))
  drop_names(slot)
end
write_totals(slot.meta, totals)
return { whole(now_ms), table.concat(flags) }
