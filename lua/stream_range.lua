-- Read a page of the stream of one slot, without a group.
--
-- KEYS[1]  store  STREAM
-- ARGV[1]  from   id, `(` and id, or `-` for the first
-- ARGV[2]  to     id, `(` and id, or `+` for the last
-- ARGV[3]  limit  most entries, 1 to 1,000
-- ARGV[4]  order  `up`: oldest first; `down`: newest first
-- Returns: entries as { id, { field, value, ... } }; empty at the end
-- Errors: none of its own
-- Complexity: O(log N + n)
-- Notes: reads only.

local store = KEYS[1]
local from, to, limit, order = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if order == 'down' then
  return redis.call('XREVRANGE', store, to, from, 'COUNT', limit)
end
return redis.call('XRANGE', store, from, to, 'COUNT', limit)
