-- Begin to drive a query that follows a STREAM topic, on one slot: from now on its earlier drivers move nothing.
--
-- KEYS[1]  store  STREAM
-- KEYS[2]  meta   HASH  totals
-- KEYS[3]  group  HASH  driver, began, totals
-- ARGV[1]  group   its name
-- ARGV[2]  driver  names this driver
-- Returns: { id that the group stands at, id of the newest entry or '', entries that were ever there for the group or
--   '', entries that it has read or passed over }; where the group is not, the id is '', and nothing was written
-- Errors: RMQ_CONSUMERS number: the group has consumers; nothing was written
-- Complexity: O(groups)
-- Notes: atomic; safe to repeat. The totals know nothing of a group that began at an id.
-- @include stream_groups

local store, meta, group = KEYS[1], KEYS[2], KEYS[3]
local name, driver = ARGV[1], ARGV[2]

local newest = redis.pcall('XREVRANGE', store, '+', '-', 'COUNT', 1)
newest = not newest.err and newest[1] and newest[1][1] or ''
local _, mine = groups_of(store, name)
if not mine then
  return { '', newest, '', '0' }
end
if mine[4] > 0 then
  return redis.error_reply('RMQ_CONSUMERS ' .. mine[4])
end
local sent, read = counts_of_group(meta, group)
redis.call('HDEL', group, '') -- a removal first: it works at maxmemory
redis.call('HSET', group, 'driver', driver)
return { mine[8], newest, sent, read }
