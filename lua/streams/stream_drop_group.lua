-- Remove a group from one slot with all that it has: its position in the stream, its pending list, its dead.
--
-- KEYS[1]  store      STREAM
-- KEYS[2]  group      HASH  epoch, ensemble, paused, state of the pass over the pending list, totals
-- KEYS[3]  retry      ZSET  padded id -> due ms
-- KEYS[4]  dead       ZSET  id -> time of death, ms
-- KEYS[5]  error      HASH  id -> last failure, JSON
-- KEYS[6]  reason     HASH  id -> why it died, JSON
-- KEYS[7]  dead_body  HASH  id -> fields of the dead, packed
-- ARGV[1]  group  its name
-- Returns: '1' if it was there, else '0'
-- Errors: none of its own
-- Complexity: O(pending)
-- Notes: safe to repeat. The entries stay in the stream.
-- @include totals

local store = KEYS[1]
local group_key, retry, dead, error_key, reason, dead_body = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local name = ARGV[1]

redis.call('XLEN', store)
redis.call('UNLINK', group_key, retry, dead, error_key, reason, dead_body)
local gone = redis.pcall('XGROUP', 'DESTROY', store, name)
if gone ~= 1 then
  replicate(group_key)
end
return gone == 1 and '1' or '0'
