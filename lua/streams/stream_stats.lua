-- Read the length, both ends and the groups of the streams of several slots, of one topic or several, at one instant.
--
-- KEYS[1..] slots  of each slot store, meta
-- ARGV[1..] totals  names of the totals to read
-- Returns: per slot { now_ms, length, first id or '', last id or '', a total per name or nil, per group what XINFO
--   GROUPS says }
-- Errors: none of its own
-- Complexity: O(slots x (groups + log N))
-- Notes: reads only.
-- @include clock, redis, stream_groups

local now_ms = read_clock()
local answers = {}
for i = 1, #KEYS, 2 do
  local store, meta = KEYS[i], KEYS[i + 1]
  local length = redis.call('XLEN', store)
  local first = redis.call('XRANGE', store, '-', '+', 'COUNT', 1)[1]
  local last = redis.call('XREVRANGE', store, '+', '-', 'COUNT', 1)[1]
  answers[#answers + 1] = {
    whole(now_ms),
    whole(length),
    first and first[1] or '',
    last and last[1] or '',
    redis.call('HMGET', meta, unpack(ARGV)),
    (groups_of(store)),
  }
end
return answers
