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
-- ARGV[5]  values       `number`; or 1: all messages have the same
-- ARGV[6]  lowest       shortest time range of the batch, ms
-- ARGV[7..] messages  time range in ms and content, alternating, see paired; then index (from 1) and body
-- Returns: { number of new ones, '1' or '0' per message if detailed or with bodies, else '' }
-- Errors: RMQ_FULL size max_backlog; OOM at maxmemory; nothing was written
-- Complexity: O(n log N)
-- Notes: atomic. Safe to repeat: a second time all of them merge.
-- @include read_clock
-- @include send_batch
-- @include paired

local slot = { store = KEYS[1], prepare = KEYS[2], body = KEYS[3], meta = KEYS[4], wake = KEYS[5] }
local publish, max_backlog, detailed, number = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
local values = tonumber(ARGV[5])

local now_ms = read_clock()
local range = ARGV[6]
local score = whole(now_ms + range)
local lowest = score
local messages, at = paired(7, number, values, score)
if values == number then
  for i = at, at + 2 * number - 1, 2 do
    if messages[i] ~= range then
      range = messages[i]
      score = whole(now_ms + range)
    end
    messages[i] = score
  end
end
return send_batch(slot, publish, max_backlog, detailed, number, messages, at, true, lowest, now_ms)
