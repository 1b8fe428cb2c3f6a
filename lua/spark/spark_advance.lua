-- Note how far a query has committed a slot: its group stands there from now on, so that what is before may be trimmed.
--
-- KEYS[1]  store  STREAM
-- KEYS[2]  group  HASH  driver, totals
-- ARGV[1]  group    its name
-- ARGV[2]  driver   names the driver
-- ARGV[3]  upto     id of the last entry that is committed
-- ARGV[4]  read     entries that the group has read or passed over by then, from its beginning
-- ARGV[5]  missing  entries of the last batch that were trimmed or deleted before they were read
-- Returns: '1' if the group has moved, '0' if it stood there or further on, or is not there
-- Errors: RMQ_DRIVER driver: another one drives the query; nothing was written
-- Complexity: O(groups)
-- Notes: atomic; safe to repeat. A group never moves back. The totals also catch up on commits that a failover lost.
-- @include totals, stream_ids, stream_groups

local store, group = KEYS[1], KEYS[2]
local name, driver, upto, read, missing = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local state = redis.call('HMGET', group, 'driver', 'fresh', 'skipped')
if state[1] and state[1] ~= driver then
  return redis.error_reply('RMQ_DRIVER ' .. state[1])
end
local _, mine = groups_of(store, name)
if not mine or is_before(upto, mine[8]) then
  return '0'
end
local moves = is_before(mine[8], upto)
redis.call('HDEL', group, '') -- a removal first: it works at maxmemory
if moves then
  redis.call('XGROUP', 'SETID', store, name, upto)
end
local more = math.max(0, read - tonumber(state[2] or 0) - tonumber(state[3] or 0))
missing = math.min(missing, more)
local number = more - missing
write_totals(group, { fresh = number, delivered = number, acked = number, skipped = missing })
return moves and '1' or '0'
