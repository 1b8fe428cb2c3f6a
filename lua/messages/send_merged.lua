-- Send messages of one slot of a topic that merges: what is sent folds into what is in store.
--
-- KEYS[1]  store    ZSET  content -> score
-- KEYS[2]  prepare  ZSET  content -> claim score; its size is read
-- KEYS[3]  body     HASH  content -> record
-- KEYS[4]  meta     HASH  totals
-- KEYS[5]  wake     channel
-- KEYS[6]  held     HASH  content -> record of what is in flight or waits for a retry
-- KEYS[7]  marks    HASH  lane -> calls that may be repeated
-- KEYS[8]  cool     ZSET  content -> end of its window, ms
-- KEYS[9]  retry    ZSET  content -> retry score
-- KEYS[10]  error   HASH  content -> last failure, JSON
-- KEYS[11]  born    ZSET  content -> time of its last send, ms; kept where there is a time to live
-- ARGV[1]  lane         of the caller, see docs/internals/merging.md
-- ARGV[2]  call         number of this call in its lane, from 1
-- ARGV[3]  floor        lowest number that may still be repeated
-- ARGV[4]  digest       of a named call's messages, hexadecimal; else empty
-- ARGV[5]  detailed     '1': say per message whether it was new; with `-` behind it: the call may take the first
--   messages only, where these cost much; with `*`: and of several messages refuse only those whose time has
--   passed; with `+`: and those that have no room
-- ARGV[6]  number       of messages, 1 to 1,000
-- ARGV[7]  rules        how the topic merges, see merge_rules
-- ARGV[8]  lowest       FIXED_TIME: the least of the values, epoch ms; else 0
-- ARGV[9]  publish      command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[10]  values       1 where all messages have the same value, else `number`
-- ARGV[11..] messages  contents; then values (ms; epoch ms, or below 0 a delay: ms from now, negated; priorities); then
--   records, a single one where all are alike
-- Returns: { number of new ones, a digit per message or '', number dropped }. Digits: 1 new, 0 merged, 2 refused as
--   with RMQ_ITEMS, 3 as with RMQ_RANGE, 4 as with RMQ_PAST. They are there if detailed, if some were refused, and if
--   there are fewer than messages: those before cost as much as a call may; the others were not looked at
-- Errors: RMQ_PAST now_ms lowest; RMQ_FULL size max_backlog; RMQ_ITEMS index, RMQ_RANGE index (of the message, from 1);
--   RMQ_REPEATED number floor; RMQ_OTHER lane (a call of this name had other messages); OOM at maxmemory; nothing was
--   written
-- Complexity: O(n log N), and the size of the records
-- Notes: atomic. Safe to repeat: a call that was carried out answers as it did then, and changes nothing but when
--   `marks` expires. One that was refused all of its messages was not carried out.
-- @include read_clock
-- @include merge_rules
-- @include send_folded
-- @include repeats

local slot = {
  store = KEYS[1], prepare = KEYS[2], body = KEYS[3], meta = KEYS[4], wake = KEYS[5], held = KEYS[6], marks = KEYS[7],
  cool = KEYS[8], retry = KEYS[9], error = KEYS[10], born = KEYS[11],
}
local lane, call, floor, digest, detailed, number =
  ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], string.sub(ARGV[5], 1, 1) == '1', tonumber(ARGV[6])

local now_ms = read_clock()
local before, kept, used, known_floor = repeated(slot, lane, call, floor, digest, now_ms)
if before then
  return before
end
local rules = merge_rules(ARGV[7], ARGV[8], ARGV[9])
if #ARGV[5] > 1 then
  local mode = string.sub(ARGV[5], 2)
  rules.each, rules.each_time = mode == '+' and number > 1, mode ~= '-'
end
local reply = send_folded(slot, rules, 11, number, tonumber(ARGV[10]), now_ms)
if reply.err then
  return reply
end
reply[2] = (detailed or reply.partly) and reply[2] or ''
if reply.nothing then
  return reply
end
reply.digest = digest
note_reply(slot, lane, call, floor, now_ms, reply, kept, used, known_floor)
return reply
