-- Drop messages of one slot's backlog, or of those that wait for a retry, for good. What is in flight is left alone.
--
-- KEYS[1]  source   ZSET  store or retry: what is dropped
-- KEYS[2]  store    ZSET  content -> score
-- KEYS[3]  prepare  ZSET  content -> claim score
-- KEYS[4]  retry    ZSET  content -> retry score
-- KEYS[5]  body     HASH  content -> body
-- KEYS[6]  meta     HASH  totals
-- KEYS[7]  error    HASH  content -> last failure, JSON
-- KEYS[8]  born?    ZSET  content -> time of its last send, ms; only for PRIORITY with a time to live
-- KEYS[9]  held?    HASH  content -> record of what is in flight or waits; only where the topic merges
-- ARGV[1]  limit  most messages, 0 to 1,000, the lowest scores first; in a slot with bodies at most 128
-- Returns: how many were dropped
-- Errors: none of its own
-- Complexity: O(n log N)
-- Notes: atomic. Not to be repeated by itself: it would drop others. The caller writes the audit for all slots.
-- @include fence, totals, bodies

local from, store = KEYS[1], KEYS[2]
local slot = with_keys({
  prepare = KEYS[3], retry = KEYS[4], body = KEYS[5], meta = KEYS[6], error = KEYS[7],
}, { KEYS[8], KEYS[9] })
local limit = tonumber(ARGV[1])
local born = slot.born

check_types({ store, slot.prepare, slot.retry, born }, { slot.body, slot.meta, slot.error, slot.held })
if redis.call('EXISTS', slot.body, slot.held or slot.body) > 0 then
  limit = math.min(limit, 128) -- to free large ones takes its time
end
local contents = limit > 0 and redis.call('ZRANGE', from, 0, limit - 1) or {}
if #contents == 0 then
  replicate(slot.meta)
  return 0
end
redis.call('ZREM', from, unpack(contents))
if born and from == store then
  redis.call('ZREM', born, unpack(contents))
end
if slot.held and from ~= store then
  redis.call('HDEL', slot.held, unpack(contents))
end
local fresh, gone = redis.call('ZMSCORE', store, unpack(contents)), {}
for i, content in ipairs(contents) do
  if not fresh[i] then
    gone[#gone + 1] = content
  end
end
if #gone > 0 then
  forget_unused(slot, gone)
end
write_totals(slot.meta, { purged = #contents })
return #contents
