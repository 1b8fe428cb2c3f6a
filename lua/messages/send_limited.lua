-- Store messages of one slot of a topic that drops what is too much, or of a PRIORITY topic with a time to live.
--
-- KEYS[1]  store    ZSET  content -> score
-- KEYS[2]  prepare  ZSET  content -> claim score
-- KEYS[3]  body     HASH  content -> body
-- KEYS[4]  meta     HASH  totals
-- KEYS[5]  wake     channel
-- KEYS[6]  retry    ZSET  content -> retry score
-- KEYS[7]  error    HASH  content -> last failure, JSON
-- KEYS[8]  born     ZSET  content -> time of its last send, ms; kept where there is a time to live
-- ARGV[1]  publish      command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[2]  max_backlog  most messages in this slot's store; 0 for no bound
-- ARGV[3]  detailed     '1': say per message whether it was new; with `+` behind it: see `send_fixed_time`
-- ARGV[4]  number       of messages, 1 to 1,000
-- ARGV[5]  lowest       RANGE_MERGE: shortest time range, ms; FIXED_TIME: earliest time, epoch ms; PRIORITY: 0
-- ARGV[6]  kind         RANGE_MERGE, FIXED_TIME, PRIORITY; DELAYED: FIXED_TIME with delays in ms as values
-- ARGV[7]  drop         '1': beyond max_backlog, drop what would be delivered last; '0': refuse the batch
-- ARGV[8]  max_retries  0 to 999: scores up to it are rollbacks, which are never dropped
-- ARGV[9]  ttl          '1': note the time of sending in born
-- ARGV[10]  scale       PRIORITY, oldest first: of the scores, see aged; else 1
-- ARGV[11]  unit_ms     PRIORITY, oldest first: of the ages; else 1
-- ARGV[12..] messages  value (ms, epoch ms, priority) and content, alternating; then index (from 1) and body
-- Returns: { number of new ones, '1' or '0' per message if detailed or with bodies, else '', number dropped }
-- Errors: RMQ_PAST now_ms lowest when `lowest` does not lie ahead, see `send_fixed_time`; RMQ_FULL size max_backlog;
--   OOM; nothing was written
-- Complexity: O(n log N)
-- Notes: atomic. A repeated send merges. A message just sent may be the one that is dropped.
-- @include read_clock
-- @include write_totals
-- @include send_ahead
-- @include age_messages
-- @include drop_excess

local slot = {
  store = KEYS[1], prepare = KEYS[2], body = KEYS[3], meta = KEYS[4], wake = KEYS[5], retry = KEYS[6], error = KEYS[7],
}
local born = KEYS[8]
local publish, max_backlog, number = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
local detailed, each = string.sub(ARGV[3], 1, 1) == '1', #ARGV[3] > 1
local lowest, kind, drop, max_retries = tonumber(ARGV[5]), ARGV[6], ARGV[7] == '1', tonumber(ARGV[8])
local ttl, scale, unit_ms = ARGV[9] == '1', tonumber(ARGV[10]), tonumber(ARGV[11])

local now_ms = read_clock()
redis.call('ZCARD', slot.retry)
redis.call('HLEN', slot.error)
redis.call('ZCARD', born)
if kind == 'RANGE_MERGE' or kind == 'DELAYED' then
  lowest = now_ms + lowest
  for i = 12, 11 + 2 * number, 2 do
    ARGV[i] = whole(now_ms + ARGV[i])
  end
end
if scale > 1 then
  age_messages(slot, scale, unit_ms, now_ms, ARGV, 12, number)
end

local keep_first, bound = kind == 'RANGE_MERGE', drop and 0 or max_backlog
local reply
if kind == 'FIXED_TIME' then
  reply = send_ahead(slot, publish, bound, detailed, number, ARGV, 12, lowest, now_ms, each)
else
  reply = send_batch(slot, publish, bound, detailed, number, ARGV, 12, keep_first, whole(lowest), now_ms)
end
if reply.err then
  return reply
end
if ttl then
  slot.born = born
  for i = 13, 11 + 2 * number, 2 do
    redis.call('ZADD', born, whole(now_ms), ARGV[i])
  end
end
local totals = {}
local dropped = drop and drop_excess(slot, kind == 'PRIORITY', max_backlog, max_retries, totals) or 0
write_totals(slot.meta, totals)
return { reply[1], reply[2], whole(dropped) }
