-- Read the consumers of a group on one slot.
--
-- KEYS[1]  store  STREAM
-- ARGV[1]  group  its name
-- Returns: per consumer what XINFO CONSUMERS says; empty where the group is not
-- Errors: none of its own
-- Complexity: O(consumers)
-- Notes: reads only. `(waiting)` stands for the entries that nobody holds: they wait for a retry.

local store = KEYS[1]
local group = ARGV[1]

redis.call('XLEN', store)
local found = redis.pcall('XINFO', 'CONSUMERS', store, group)
return found.err and {} or found
