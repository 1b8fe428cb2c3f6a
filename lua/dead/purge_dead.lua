-- Drop dead messages of one slot for good.
--
-- KEYS[1]  dead       ZSET  content -> time of death, ms
-- KEYS[2]  meta       HASH  totals
-- KEYS[3]  reason     HASH  content -> why it died, JSON
-- KEYS[4]  dead_body  HASH  content -> body of the dead
-- KEYS[5]  audit      STREAM  who steered what
-- ARGV[1]  actor      who, for the audit; empty for no line
-- ARGV[2..] contents  1 to 1,000
-- Returns: how many were dropped
-- Errors: none of its own
-- Complexity: O(n log N)
-- Notes: atomic; safe to repeat.
-- @include totals, redis

local dead, meta, reason, dead_body = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local audit, actor = KEYS[5], ARGV[1]

for _, hash in ipairs({ meta, reason, dead_body }) do
  redis.call('HLEN', hash)
end
redis.call('XLEN', audit)
local contents = { unpack(ARGV, 2) }
local dropped = redis.call('ZREM', dead, unpack(contents))
redis.call('HDEL', reason, unpack(contents))
redis.call('HDEL', dead_body, unpack(contents))
if dropped == 0 then
  replicate(meta)
end
write_totals(meta, { purged = dropped })
if actor ~= '' then
  local named = #contents == 1 and contents[1] or ''
  note(audit, actor, 'purge dead', named, #contents .. ' messages', 'dropped ' .. dropped)
end
return dropped
