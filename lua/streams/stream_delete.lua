-- Delete single entries of one slot by id, whoever may still need them.
--
-- KEYS[1]  store  STREAM
-- KEYS[2]  meta   HASH  totals
-- ARGV[1..] ids  at most 1,000
-- Returns: how many were there
-- Errors: none of its own
-- Complexity: O(n log N)
-- Notes: atomic; safe to repeat. A group that has one of them pending finds out, acks it and counts it as lost.
-- @include totals

local store, meta = KEYS[1], KEYS[2]

redis.call('HLEN', meta)
local deleted = redis.call('XDEL', store, unpack(ARGV))
if deleted == 0 then
  replicate(meta)
end
write_totals(meta, { deleted = deleted })
return deleted
