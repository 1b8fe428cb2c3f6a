-- Send one chunk of a streaming query's batch to one slot of a topic that merges, unless it was sent before.
--
-- KEYS[1]  store    ZSET  content -> score
-- KEYS[2]  prepare  ZSET  content -> claim score; its size is read
-- KEYS[3]  body     HASH  content -> record
-- KEYS[4]  meta     HASH  totals
-- KEYS[5]  wake     channel
-- KEYS[6]  held     HASH  content -> record of what is in flight or waits for a retry
-- KEYS[7]  sent     HASH  partition:chunk -> batch:digest, of this query; on slot 0 also `cut`: how a batch is cut
-- KEYS[8]  cool     ZSET  content -> end of its window, ms
-- KEYS[9]  retry    ZSET  content -> retry score
-- KEYS[10]  error   HASH  content -> last failure, JSON
-- KEYS[11]  born    ZSET  content -> time of its last send, ms; kept where there is a time to live
-- ARGV[1]  chunk        partition:chunk, or `cut`
-- ARGV[2]  batch        number of the batch, from 0
-- ARGV[3]  digest       of the chunk's messages; `-` and indices behind it: without these, which were refused
-- ARGV[4]  strict       '1': refuse a chunk of which this batch has sent another version before
-- ARGV[5]  keep_s       seconds for which the mark is kept, counted from the query's last send to this slot
-- ARGV[6]  number       of messages, 0 to 1,000; 0 where only the mark is left
-- ARGV[7]  first        how many of the chunk's messages stand before these: they were sent
-- ARGV[8]  rules        how the topic merges, see merge_rules
-- ARGV[9]  lowest       FIXED_TIME: earliest time of the batch, epoch ms; else 0
-- ARGV[10]  publish      command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[11]  values       1 where all messages have the same value, else `number`
-- ARGV[12..] messages  contents; then values (ms, epoch ms, priorities); then records, a single one where all are alike
-- Returns: { '1' if it was sent now, else '0', number of new ones, indices without which it was sent before, or empty,
--   how many of the chunk's messages but these are sent, from the first one on, where that is not all, else '' }
-- Errors: those of `send_merged` but RMQ_REPEATED; RMQ_CHANGED batch; nothing was written
-- Complexity: O(n log N), and the size of the records
-- Notes: atomic; safe to repeat, see `spark_send`. What was sent without some messages counts as sent before. Where the
--   messages cost as much as a call may, the first ones are sent: the mark says how many, `+` behind the digest, and a
--   call for the others follows. Messages that were refused are not among those that are counted.
-- @include read_clock
-- @include merge_rules
-- @include send_folded
-- @include sent_before

local slot = {
  store = KEYS[1], prepare = KEYS[2], body = KEYS[3], meta = KEYS[4], wake = KEYS[5], held = KEYS[6], cool = KEYS[8],
  retry = KEYS[9], error = KEYS[10], born = KEYS[11],
}
local sent, chunk, batch, digest, strict = KEYS[7], ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1'
local keep_s, number, first = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])

local before, other = sent_before(sent, chunk, batch, digest, keep_s)
if before then
  return { '0', '0', '', '' }
end
if other then
  local known, without, done = string.match(other, '^(%x*)%-?([%d.]*)%+?(%d*)$')
  local same = known == string.match(digest, '^%x*')
  if same and done ~= whole(first) then
    redis.call('EXPIRE', sent, keep_s)
    return { '0', '0', without, done }
  end
  if strict and not same then
    return redis.error_reply('RMQ_CHANGED ' .. whole(batch))
  end
end
local rules = merge_rules(ARGV[8], ARGV[9], ARGV[10])
rules.each = false
local reply = number > 0 and send_folded(slot, rules, 12, number, tonumber(ARGV[11]), read_clock()) or { 0 }
if reply.err then
  return reply
end
local done = reply.partly and whole(first + #reply[2]) or ''
redis.call('HSET', sent, chunk, whole(batch) .. ':' .. digest .. (done == '' and '' or '+' .. done))
redis.call('EXPIRE', sent, keep_s)
return { '1', whole(reply[1]), '', done }
