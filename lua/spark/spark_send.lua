-- Send one chunk of a streaming query's batch to one slot, unless it was sent before.
--
-- KEYS[1]  store    ZSET or STREAM
-- KEYS[2]  prepare  ZSET  content -> claim score; its size is read; not of streams
-- KEYS[3]  body     HASH  content -> body; not of streams
-- KEYS[4]  meta     HASH  totals
-- KEYS[5]  wake     channel
-- KEYS[6]  sent     HASH  partition:chunk -> batch:digest, of this query
-- ARGV[1]  publish      command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[2]  lowest       RANGE_MERGE: shortest time range, ms; FIXED_TIME: earliest time, epoch ms; else 0
-- ARGV[3]  max_backlog  most messages in this slot; 0 for no bound
-- ARGV[4]  number       of messages, 1 to 1,000
-- ARGV[5]  kind         RANGE_MERGE, PRIORITY, FIXED_TIME or STREAM
-- ARGV[6]  chunk        partition:chunk
-- ARGV[7]  batch        number of the batch, from 0
-- ARGV[8]  digest       of the chunk's messages
-- ARGV[9]  keep_s       seconds for which the mark is kept, counted from the query's last send to this slot
-- ARGV[10]  scale       PRIORITY, oldest first: of the scores, see aged; else 1
-- ARGV[11]  unit_ms     PRIORITY, oldest first: of the ages; else 1
-- ARGV[12..] messages  value and content, alternating, see read_batch; then index (from 1) and body; STREAM: see
--   `stream_send`
-- Returns: { '1' if it was sent now, else '0', number of new ones }
-- Errors: RMQ_PAST now_ms lowest when `lowest` does not lie ahead; RMQ_FULL size max_backlog; OOM; nothing was written
-- Complexity: O(n log N)
-- Notes: atomic; safe to repeat. It counts as sent before when its mark is that of a later batch, or of this one with
--   the same digest.
-- @include read_clock
-- @include read_batch
-- @include send_ahead
-- @include age_messages
-- @include append_entries
-- @include sent_before

local slot = { store = KEYS[1], prepare = KEYS[2], body = KEYS[3], meta = KEYS[4], wake = KEYS[5] }
local sent = KEYS[6]
local publish, lowest, max_backlog, number = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local kind, chunk, batch, digest, keep_s = ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9]
local scale, unit_ms = tonumber(ARGV[10]), tonumber(ARGV[11])

if sent_before(sent, chunk, batch, digest, keep_s) then
  return { '0', '0' }
end

local new
if kind == 'STREAM' then
  local size = redis.call('XLEN', slot.store)
  redis.call('HLEN', slot.meta)
  if max_backlog > 0 and size + number > max_backlog then
    return redis.error_reply('RMQ_FULL ' .. size .. ' ' .. max_backlog)
  end
  append_entries(slot.store, slot.meta, 12, number, false)
  hint(publish, slot.wake, '0')
  new = whole(number)
else
  local now_ms, from_now = read_clock(), kind == 'RANGE_MERGE'
  local messages = read_batch(12, #ARGV, number, whole(number), from_now and now_ms)
  if scale > 1 then
    age_messages(slot, scale, unit_ms, now_ms, messages)
  end
  local rules = { publish = publish, max_backlog = max_backlog, keep_first = from_now }
  local reply
  if kind == 'FIXED_TIME' then
    reply = send_ahead(slot, rules, messages, lowest, now_ms)
  else
    reply = send_batch(slot, rules, messages, from_now and whole(now_ms + lowest) or '0', now_ms)
  end
  if reply.err then
    return reply
  end
  new = whole(reply[1])
end
redis.call('HSET', sent, chunk, whole(batch) .. ':' .. digest)
redis.call('EXPIRE', sent, keep_s)
return { '1', new }
