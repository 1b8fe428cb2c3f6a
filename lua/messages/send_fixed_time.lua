-- Send fixed-time messages to one slot: due at their time; of a content in store, the last send decides.
--
-- KEYS[1]  store    ZSET  content -> score
-- KEYS[2]  prepare  ZSET  content -> claim score; its size is read
-- KEYS[3]  body     HASH  content -> body
-- KEYS[4]  meta     HASH  totals
-- KEYS[5]  wake     channel
-- ARGV[1]  publish      command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[2]  max_backlog  most messages in this slot's store; 0 for no bound
-- ARGV[3]  detailed     '1': say per message whether it was new; with `+` behind it: of several messages refuse only
--   those whose time has passed
-- ARGV[4]  number       of messages, 1 to 1,000
-- ARGV[5]  values       `number`; or 1: all messages have the same
-- ARGV[6]  lowest       earliest fixed time of the batch, epoch ms
-- ARGV[7..] messages  fixed time in epoch ms and content, alternating, see paired; then index (from 1) and body
-- Returns: { number of new ones, '1' or '0' per message if detailed or with bodies, else '' }; 4 for a message whose
--   time has passed: then there are outcomes
-- Errors: RMQ_PAST now_ms lowest when `lowest` does not lie ahead, with `+` when no time does; RMQ_FULL size
--   max_backlog; OOM; nothing was written
-- Complexity: O(n log N)
-- Notes: atomic. Safe to repeat while the times lie ahead.
-- @include read_clock
-- @include send_ahead
-- @include paired

local slot = { store = KEYS[1], prepare = KEYS[2], body = KEYS[3], meta = KEYS[4], wake = KEYS[5] }
local publish, max_backlog, number, values = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4]), tonumber(ARGV[5])
local detailed, each, lowest = string.sub(ARGV[3], 1, 1) == '1', #ARGV[3] > 1, tonumber(ARGV[6])

local now_ms = read_clock()
local messages, at = paired(7, number, values, ARGV[7])
return send_ahead(slot, publish, max_backlog, detailed, number, messages, at, lowest, now_ms, each)
