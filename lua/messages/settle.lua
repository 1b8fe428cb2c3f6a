-- Settle deliveries of one slot of a topic, or of several slots at once: ack, nack, bury and release claimed messages.
--
-- KEYS[1..] slots  of each slot store, prepare, body, meta, error and wake; with nacks also retry, dead, reason and
--   dead_body; then those that only some topics have: with nacks born (PRIORITY with a time to live); held (merge)
-- ARGV[1]   max_retries      0 to 999
-- ARGV[2]   max_dead_age_ms  ms
-- ARGV[3]   max_dead         most dead in a slot
-- ARGV[4]   publish          command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[5..] settlements      of each slot: how many values follow; how many keys it has; epoch, 0 without ZooKeeper;
--   identity of the ZooKeeper ensemble, empty without; nacks, acks and whole claims: see settle_nacks, settle_acks and
--   settle_whole
-- Returns: 1 if all was settled; else { contents whose claim was no longer ours, claim scores of whole claims that must
--   be acked by their contents, how many of the nacks, the last ones, are as they were since those before have used up
--   what a call may move }. Of several slots a table, in which the text of its error stands for a slot's reply
-- Errors: of a slot: RMQ_FENCED stored_epoch epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written there. OOM can't
--   occur, and a server that takes no writes refuses before anything is written
-- Complexity: O(n log N)
-- Notes: an ack takes the content out of prepare, its failure out of error and its body out of body, unless a fresh
--   copy in store has that by now; where the topic merges, its value out of held; and counts as `acked` in meta. A
--   claim with settlements writes the same. Compare-and-set on the claim score: a stale settlement changes nothing.
--   Each slot is settled atomically. Never repeated after a lost reply.
-- @include fence, totals, settlements

local max_retries, publish = tonumber(ARGV[1]), ARGV[4]
local budget = { bytes = 4194304 }

-- Settles what the part that begins at ARGV[at] names, in the slot whose keys stand behind KEYS[base]. `joined`: the
-- call has written before.
local function settle_part(base, at, joined)
  local last_key, epoch, ensemble, first = base + tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3], at + 4
  local nacks = ARGV[first] ~= '0'
  local slot = {
    store = KEYS[base + 1], prepare = KEYS[base + 2], body = KEYS[base + 3], meta = KEYS[base + 4],
    error = KEYS[base + 5], budget = budget,
  }
  if last_key > base + (nacks and 10 or 6) then
    -- @include fence
    with_keys(slot, { unpack(KEYS, base + (nacks and 11 or 7), last_key) })
  end

  local refusal, newer = check_fence(slot.meta, epoch, ensemble)
  if refusal then
    return refusal
  end
  local bodies, errors
  if nacks then
    -- @include redis
    slot.retry, slot.dead, slot.reason, slot.dead_body = unpack(KEYS, base + 7, base + 10)
    local sizes = measure(slot)
    bodies, errors = sizes.body, sizes.error
    if slot.born then
      redis.call('ZCARD', slot.born)
    end
  else
    redis.call('ZCARD', slot.store)
    redis.call('ZCARD', slot.prepare)
    bodies, errors = redis.call('HLEN', slot.body), redis.call('HLEN', slot.error)
    if slot.held then
      redis.call('HLEN', slot.held)
    end
  end

  local totals, stale, unmatched, left, back = {}, {}, {}, 0, 0
  if newer or not joined then
    begin_write(slot, newer, epoch, ensemble)
  end
  at = first + 1
  if nacks then
    -- @include clock, settlements, dead
    local now_ms = read_clock()
    local done
    at, back, done = settle_nacks(slot, first, now_ms, max_retries, totals, stale)
    left = tonumber(ARGV[first]) - done
    trim_dead(slot, now_ms, tonumber(ARGV[2]), tonumber(ARGV[3]), totals)
  end
  at = settle_acks(slot, at, bodies, errors, totals, stale)
  if ARGV[at] ~= '0' then
    -- @include settlements
    settle_whole(slot, at, bodies == 0 and errors == 0 and not slot.held, totals, unmatched)
  end
  write_totals(slot.meta, totals)
  if back > 0 then
    -- @include redis
    hint(publish, KEYS[base + 6], '0')
  end
  return (stale[1] or unmatched[1] or left > 0) and { stale, unmatched, left } or 1
end

if #KEYS > tonumber(ARGV[6]) then
  -- @include fence
  local base = 0
  return serve_slots(settle_part, 5, nil, KEYS[base + 2])
end
return settle_part(0, 5)
