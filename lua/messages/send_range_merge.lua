-- Send merge messages to one slot: due a time range from now; a content already in store stays as it is.
--
-- KEYS[1]  store    ZSET  content -> score
-- KEYS[2]  prepare  ZSET  content -> claim score; its size is read
-- KEYS[3]  body     HASH  content -> body
-- KEYS[4]  meta     HASH  totals
-- KEYS[5]  wake     channel
-- ARGV[1]  publish      command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[2]  max_backlog  most messages in this slot's store; 0 for no bound
-- ARGV[3]  detailed     '1': say per message whether it was new
-- ARGV[4]  number       of messages, 1 to 1,000
-- ARGV[5]  lowest       shortest time range of the batch, ms
-- ARGV[6..] messages  time range in ms and content, alternating; then index (from 1) and body of those with one
-- Returns: { number of new ones, '1' or '0' per message if detailed or with bodies, else '' }
-- Errors: RMQ_FULL size max_backlog; OOM at maxmemory; nothing was written
-- Complexity: O(n log N)
-- Notes: atomic. Safe to repeat: a second time all of them merge.
-- @include read_clock
-- @include send_batch

local slot = { store = KEYS[1], prepare = KEYS[2], body = KEYS[3], meta = KEYS[4], wake = KEYS[5] }
local publish, max_backlog, detailed, number = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])

local now_ms = read_clock()
local range = ARGV[5]
local score = whole(now_ms + range)
local lowest = score
for i = 6, 5 + 2 * number, 2 do
  if ARGV[i] ~= range then
    range = ARGV[i]
    score = whole(now_ms + range)
  end
  ARGV[i] = score
end
return send_batch(slot, publish, max_backlog, detailed, number, 6, true, lowest, now_ms)
