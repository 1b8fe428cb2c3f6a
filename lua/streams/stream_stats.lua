-- Read the length, both ends and the groups of the stream of one slot.
--
-- KEYS[1]  store  STREAM
-- KEYS[2]  meta   HASH  totals
-- ARGV[1..] totals  names of the totals to read
-- Returns: { now_ms, length, first id or '', last id or '', a total per name or nil, per group what XINFO GROUPS says }
-- Errors: none of its own
-- Complexity: O(groups + log N)
-- Notes: reads only.
-- @include clock, redis, stream_groups

local store, meta = KEYS[1], KEYS[2]

local now_ms = read_clock()
local length = redis.call('XLEN', store)
local first = redis.call('XRANGE', store, '-', '+', 'COUNT', 1)[1]
local last = redis.call('XREVRANGE', store, '+', '-', 'COUNT', 1)[1]
return {
  whole(now_ms),
  whole(length),
  first and first[1] or '',
  last and last[1] or '',
  redis.call('HMGET', meta, unpack(ARGV)),
  (groups_of(store)),
}
