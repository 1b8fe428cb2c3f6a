-- Give back what an earlier process of this name held, without waiting for its leases: it is gone, says whoever calls.
--
-- KEYS[1]  store      STREAM
-- KEYS[2]  group      HASH  epoch, ensemble, paused, state of the pass over the pending list, totals
-- KEYS[3]  retry      ZSET  padded id -> due ms; 0 for at once
-- KEYS[4]  dead       ZSET  id -> time of death, ms
-- KEYS[5]  error      HASH  id -> last failure, JSON
-- KEYS[6]  reason     HASH  id -> why it died, JSON
-- KEYS[7]  dead_body  HASH  id -> fields of the dead, packed
-- KEYS[8]  wake       channel
-- ARGV[1]  group         its name
-- ARGV[2]  consumer      the name that both processes have
-- ARGV[3]  limit         most entries, 1 to 1,000; fewer are met where those that die have more than 4 MiB
-- ARGV[4]  max_retries   0 to 999
-- ARGV[5]  max_dead_age_ms  ms
-- ARGV[6]  max_dead      most dead of the group in this slot
-- ARGV[7]  publish       command for the wake hint: PUBLISH or SPUBLISH
-- Returns: { 1 if there may be more, else 0; entries met; ids that were trimmed or deleted before they were acked }
-- Errors: none of its own
-- Complexity: O(n log N)
-- Notes: each entry counts as a delivery whose lease has run out: it comes again at once, with the next delivery count,
--   or dies where its retries are used up. So whatever the earlier process still sends is stale: see settle_entries.
--   Safe to repeat before the new process claims. Where the group is not, there is nothing to do.
-- @include clock, fence, totals, redis, failures, dead, stream_groups, stream_settlements

local slot = {
  store = KEYS[1], meta = KEYS[2], retry = KEYS[3], dead = KEYS[4], error = KEYS[5], reason = KEYS[6],
  dead_body = KEYS[7], group = ARGV[1], consumer = ARGV[2], left = {},
}
local wake = KEYS[8]
local limit, max_retries = tonumber(ARGV[3]), tonumber(ARGV[4])
local max_dead_age, max_dead, publish = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]

local now_ms = read_clock()
redis.call('XLEN', slot.store)
check_types({ slot.retry, slot.dead }, { slot.meta, slot.error, slot.reason, slot.dead_body })
local rows, found = {}, redis.pcall('XINFO', 'CONSUMERS', slot.store, slot.group)
for _, each in ipairs(found.err and {} or found) do
  if belongs(each[2], slot.consumer) and #rows < limit then
    for _, row in ipairs(redis.call('XPENDING', slot.store, slot.group, '-', '+', limit - #rows, each[2])) do
      rows[#rows + 1] = row
    end
    slot.left[each[2]] = each[2] ~= slot.consumer or nil
  end
end

local totals, lost, met, left = {}, {}, 0, 4194304
redis.call('ZREMRANGEBYRANK', slot.retry, 1, 0)
for _, row in ipairs(rows) do
  if left <= 0 then
    break
  end
  local id, deliveries = row[1], row[4]
  local failure = failure_of(slot, id, deliveries == 1, now_ms, 'LeaseExpired',
    'delivery ' .. deliveries .. ' was neither acked nor nacked before its consumer began anew')
  if deliveries > max_retries then
    left = left - bury_entry(slot, id, failure, deliveries, now_ms, totals, lost)
  else
    record_failure(slot, id, failure)
    park(slot, id, deliveries, 0, totals, lost)
  end
  tally(totals, 'expired', 1)
  met = met + 1
end
if (totals.buried or 0) > 0 then
  trim_dead(slot, now_ms, max_dead_age, max_dead, totals)
end
drop_names(slot)
write_totals(slot.meta, totals)
if met > 0 then
  note_taken(slot, redis.call('HGET', slot.meta, 'stamp'))
  hint(publish, wake, '0')
end
return { (met < #rows or met == limit) and 1 or 0, met, lost }
