-- Send messages of one slot of a topic that merges: what is sent folds into what is in store.
--
-- KEYS[1]  store    ZSET  content -> score
-- KEYS[2]  prepare  ZSET  content -> claim score; its size is read
-- KEYS[3]  body     HASH  content -> record
-- KEYS[4]  meta     HASH  totals
-- KEYS[5]  wake     channel
-- KEYS[6]  held     HASH  content -> record of what is in flight or waits for a retry
-- KEYS[7]  marks    HASH  lane -> calls that may be repeated, see completed; of a query of Spark: sent
-- KEYS[8]  cool     ZSET  content -> end of its window, ms
-- KEYS[9]  retry    ZSET  content -> retry score
-- KEYS[10]  error   HASH  content -> last failure, JSON
-- KEYS[11]  born    ZSET  content -> time of its last send, ms; kept where there is a time to live
-- ARGV[1]  lane         of the caller, see docs/internals/merging.md; partition:chunk of a task of Spark, or its `cut`
-- ARGV[2]  call         number of this call in its lane, from 1; number of Spark's batch, from 0
-- ARGV[3]  floor        lowest number that may still be repeated; number of Spark's batch
-- ARGV[4]  digest       of a named call's messages, hexadecimal; of a chunk's, with `-` and indices behind it: without
--   these, which were refused; else empty
-- ARGV[5]  chunk        of Spark: keep_s (seconds for which marks are kept after the last send of the query to this
--   slot), strict ('1': refuse a chunk of which this batch has sent another version before), first (how many of the
--   chunk's messages stand before these: they were sent); else empty
-- ARGV[6]  detailed     '1': say per message whether it was new; with `-` behind it: the call may take the first
--   messages only, where these cost much; with `*`: and of several messages refuse only those whose time has
--   passed; with `+`: and those that have no room
-- ARGV[7]  number       of messages, 0 to 1,000; 0 where only a mark is left
-- ARGV[8]  rules        how the topic merges, see merge_rules
-- ARGV[9]  lowest       FIXED_TIME: the least of the values, epoch ms; else 0
-- ARGV[10]  publish      command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[11]  values       1 where all messages have the same value, else `number`
-- ARGV[12..] messages  contents; then values (ms; epoch ms, or below 0 a delay: ms from now, negated; priorities); then
--   records, a single one where all are alike
-- Returns: { number of new ones, a digit per message or '', number dropped }. Digits: 1 new, 0 merged, 2 refused as
--   with RMQ_ITEMS, 3 as with RMQ_RANGE, 4 as with RMQ_PAST. They are there if detailed, if some were refused, and if
--   there are fewer than messages: those before cost as much as a call may; the others were not looked at.
--   Of a chunk that was sent before: { 0, '', '0', indices without which, how many of its messages but these are sent,
--   from the first one on, where that is not all, else '' }
-- Errors: RMQ_PAST now_ms lowest; RMQ_FULL size max_backlog; RMQ_ITEMS index, RMQ_RANGE index (of the message, from 1);
--   RMQ_REPEATED number floor; RMQ_OTHER lane (a call of this name had other messages); RMQ_CHANGED batch (a chunk
--   had); OOM at maxmemory; nothing was written
-- Complexity: O(n log N), and the size of the records
-- Notes: atomic. Safe to repeat: a call that was carried out answers as it did then, and changes nothing but when
--   `marks` expires. One that was refused all of its messages was not carried out.
-- @include clock, redis, merge_plan, completion

local slot = {
  store = KEYS[1], prepare = KEYS[2], body = KEYS[3], meta = KEYS[4], wake = KEYS[5], held = KEYS[6], marks = KEYS[7],
  cool = KEYS[8], retry = KEYS[9], error = KEYS[10], born = KEYS[11],
}
local lane, call = ARGV[1], { number = ARGV[2], floor = tonumber(ARGV[3]), digest = ARGV[4] }
local detailed, number = string.sub(ARGV[6], 1, 1) == '1', tonumber(ARGV[7])
local keep_s, strict, first = string.match(ARGV[5], '^(%d+) (%d) (%d+)$')
local keep = { unused_ms = 3600000, key_ms = 7200000, noted_ms = 60000, named = string.sub(lane, 1, 1) == '=' }
if keep_s then
  keep = { key_ms = keep_s * 1000, noted_ms = 0 }
end

local now_ms = read_clock()
local known = completed(slot.marks, lane, call, keep, now_ms)
if keep_s then
  -- @include completion
  local before = sent_before(known, call, strict == '1', first)
  if before then
    return before
  end
elseif known.reply and known.digest ~= call.digest then
  return redis.error_reply('RMQ_OTHER ' .. lane)
elseif known.reply then
  local new, dropped, outcomes = string.match(known.reply, '^(%d+) (%d+) (%d*)$')
  return { tonumber(new), outcomes, dropped }
elseif tonumber(call.number) < known.floor then
  return redis.error_reply('RMQ_REPEATED ' .. call.number .. ' ' .. whole(known.floor))
end
local rules = merge_rules(ARGV[8], ARGV[9], ARGV[10])
if #ARGV[6] > 1 then
  local mode = string.sub(ARGV[6], 2)
  rules.each, rules.each_time = mode == '+' and number > 1, mode ~= '-'
end
local reply = { 0, '', '0' }
if number > 0 then
  reply = send_folded(slot, rules, 12, number, tonumber(ARGV[11]), now_ms)
end
if reply.err then
  return reply
end
reply[2] = (detailed or reply.partly) and reply[2] or ''
if reply.nothing then
  return reply
end
local kept = reply[1] .. ' ' .. reply[3] .. ' ' .. reply[2]
if keep_s then
  kept = reply.partly and whole(first + #reply[2]) or ''
end
note_completion(slot.marks, lane, call, kept, keep, known, now_ms)
return reply
