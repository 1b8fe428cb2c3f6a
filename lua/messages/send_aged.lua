-- Send priority messages to one slot: the largest goes first, of equal ones the oldest; of a content in store, the last
-- send decides on the priority, and the first one on the age.
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
-- ARGV[6]  scale        of the scores: see aged
-- ARGV[7]  unit_ms      of the ages
-- ARGV[8]  mark         the age mark with which scores were made of the priorities; '-1': they are priorities
-- ARGV[9..] messages  priority, or score, and content, alternating, see paired; then index (from 1) and body
-- Returns: { number of new ones, '1' or '0' per message if detailed or with bodies, else '', now_ms }
-- Errors: RMQ_FULL size max_backlog; OOM at maxmemory; nothing was written
-- Complexity: O(n log N)
-- Notes: atomic. Safe to repeat: a second time nothing changes. Redis' time decides on the age, whatever the mark.
-- @include read_clock
-- @include send_batch
-- @include paired
-- @include age_messages

local slot = { store = KEYS[1], prepare = KEYS[2], body = KEYS[3], meta = KEYS[4], wake = KEYS[5] }
local publish, max_backlog, detailed, number = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
local values = tonumber(ARGV[5])
local scale, unit_ms = tonumber(ARGV[6]), tonumber(ARGV[7])

local made = ARGV[8] ~= '-1' and tonumber(ARGV[8]) or nil
local now_ms = read_clock()
local messages, at = paired(9, number, values, ARGV[9])
age_messages(slot, scale, unit_ms, now_ms, messages, at, number, made)
local reply = send_batch(slot, publish, max_backlog, detailed, number, messages, at, false, '0', 0)
reply[3] = now_ms
return reply
