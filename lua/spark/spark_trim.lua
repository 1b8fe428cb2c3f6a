-- Drop what an archive has of one slot: entries that its group has passed, and that no other group needs.
--
-- KEYS[1]  store  STREAM
-- KEYS[2]  meta   HASH  totals
-- KEYS[3]  group  HASH  driver
-- ARGV[1]  group   its name
-- ARGV[2]  driver  names the driver
-- ARGV[3]  upto    id of the last entry that may go
-- Returns: { entries dropped, '1' if there is more to drop else '0', '1' if a group still needs entries up to there }
-- Errors: RMQ_DRIVER driver: another one drives the query; nothing was written
-- Complexity: O(dropped + groups); at most about 10,000 entries a call, and 10 ms, since large ones take their time
-- Notes: atomic; safe to repeat. Without the group nothing is dropped.
-- @include clock, totals, redis, stream_ids, stream_groups

local store, meta, group = KEYS[1], KEYS[2], KEYS[3]
local name, driver, upto = ARGV[1], ARGV[2], ARGV[3]
local most = 10000

local now_ms = read_clock()
redis.call('HLEN', meta)
local found = redis.call('HGET', group, 'driver')
if found and found ~= driver then
  return redis.error_reply('RMQ_DRIVER ' .. found)
end
local _, mine = groups_of(store, name)
if not mine then
  return { '0', '0', '0' }
end
local limit, needed = id_after(upto), first_unacked(store)
local held = is_before(needed, limit)
local dropped, late = trim_below(store, held and needed or limit, most, false, now_ms + 10)
write_totals(meta, { trimmed = dropped })
held = held and redis.call('XRANGE', store, needed, upto, 'COUNT', 1)[1]
return { whole(dropped), (late or dropped >= most) and '1' or '0', held and '1' or '0' }
