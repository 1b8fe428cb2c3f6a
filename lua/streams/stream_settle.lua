-- Settle deliveries of a group in one slot of a stream topic, or in several slots at once: ack, nack, bury, release.
--
-- KEYS[1..] slots  of each slot store, group, retry, error and wake; with nacks also dead, reason and dead_body
-- ARGV[1]   group            its name
-- ARGV[2]   consumer         name of this consumer
-- ARGV[3]   max_retries      0 to 999
-- ARGV[4]   max_dead_age_ms  ms
-- ARGV[5]   max_dead         most dead of the group in a slot
-- ARGV[6]   publish          command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[7..] settlements      of each slot: how many values follow; how many keys it has; epoch, 0 without ZooKeeper;
--   identity of the ZooKeeper ensemble, empty without; nacks and acks: see settle_entries; whole claims: see
--   settle_whole_reads
-- Returns: 1 if all was settled; else { ids whose delivery was no longer ours, scores of whole claims that must be
--   acked by their ids, how many of the nacks, the last ones, are as they were since those before have used up what a
--   call may move, ids of entries that were trimmed or deleted before they were acked }. Of several slots a table, in
--   which the text of its error stands for a slot's reply
-- Errors: of a slot: RMQ_FENCED stored_epoch epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written there. OOM can't
--   occur, and a server that takes no writes refuses before anything is written
-- Complexity: O(n log N)
-- Notes: compare-and-set on holder and delivery count: a stale settlement changes nothing. Each slot is settled
--   atomically. Never repeated after a lost reply.
-- @include fence, totals

local group, consumer, max_retries, publish = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[6]
local budget, TAKEN = { bytes = 4194304 }, { 'taken' }

-- Settles what the part that begins at ARGV[at] names, in the slot whose keys stand behind KEYS[base]. `joined`: the
-- call has written before.
local function settle_part(base, at, joined)
  local epoch, ensemble, first = ARGV[at + 2], ARGV[at + 3], at + 4
  local nacks = ARGV[first] ~= '0'
  local slot = {
    store = KEYS[base + 1], meta = KEYS[base + 2], retry = KEYS[base + 3], error = KEYS[base + 4],
    group = group, consumer = consumer, left = {}, budget = budget,
  }
  local refusal, newer, _, stored = check_fence(slot.meta, epoch, ensemble, TAKEN)
  if refusal then
    return refusal
  end
  local now_ms = 0
  if nacks then
    -- @include clock
    now_ms = read_clock()
    slot.dead, slot.reason, slot.dead_body = unpack(KEYS, base + 6, base + 8)
    redis.call('ZCARD', slot.retry)
    redis.call('ZCARD', slot.dead)
    redis.call('HLEN', slot.reason)
    redis.call('HLEN', slot.dead_body)
  end
  slot.plain = redis.call('HLEN', slot.error) == 0
  local oldest = redis.pcall('XPENDING', slot.store, group, '-', '+', 1)
  if oldest.err and not string.find(oldest.err, 'NOGROUP', 1, true) then
    return oldest
  end

  local totals, stale, lost, unmatched, back, done = {}, {}, {}, {}, 0, 0
  if newer or not joined then
    begin_write({ store = slot.retry, meta = slot.meta }, newer, epoch, ensemble)
  end
  if oldest.err then -- whose group is gone holds nothing
    redis.call('XGROUP', 'CREATE', slot.store, group, '0', 'MKSTREAM')
  end
  at = first + 2
  if nacks or ARGV[first + 1] ~= '0' then
    -- @include stream_settlements, stream_groups
    back, at, done = settle_entries(slot, first, now_ms, max_retries, totals, stale, lost)
    drop_names(slot)
  end
  if nacks then
    -- @include dead
    trim_dead(slot, now_ms, tonumber(ARGV[4]), tonumber(ARGV[5]), totals)
  end
  if ARGV[at] ~= '0' then
    -- @include stream_settlements
    unmatched = settle_whole_reads(slot, at, tonumber(stored[4] or 0), totals)
  end
  write_totals(slot.meta, totals)
  if oldest.err then
    redis.call('XGROUP', 'DESTROY', slot.store, group)
  end
  if back > 0 then
    -- @include redis
    hint(publish, KEYS[base + 5], '0')
  end
  local left = tonumber(ARGV[first]) - done
  return (stale[1] or unmatched[1] or left > 0 or lost[1]) and { stale, unmatched, left, lost } or 1
end

if #KEYS > tonumber(ARGV[8]) then
  -- @include fence
  local base = 0
  return serve_slots(settle_part, 7, nil, KEYS[base + 3])
end
return settle_part(0, 7)
