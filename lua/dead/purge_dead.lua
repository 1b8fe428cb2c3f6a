-- Drop dead messages of one slot for good.
--
-- KEYS[1]  dead       ZSET  content -> time of death, ms
-- KEYS[2]  meta       HASH  totals
-- KEYS[3]  reason     HASH  content -> why it died, JSON
-- KEYS[4]  dead_body  HASH  content -> body of the dead
-- KEYS[5]  audit      STREAM  who steered what
-- ARGV[1]  before_ms  without contents: only those that died before this time, epoch ms, or +inf
-- ARGV[2]  limit      without contents: how many, the longest dead first, 0 to 1,000; with bodies at most 256
-- ARGV[3]  actor      who, for the audit; empty for no line
-- ARGV[4..] contents  at most 1,000; none for the longest dead
-- Returns: how many were dropped
-- Errors: none of its own
-- Complexity: O(n log N)
-- Notes: atomic. Safe to repeat with contents.
-- @include write_totals
-- @include note

local dead, meta, reason, dead_body = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local audit, actor = KEYS[5], ARGV[3]
local before_ms, limit = ARGV[1], tonumber(ARGV[2])

for _, hash in ipairs({ meta, reason, dead_body }) do
  redis.call('HLEN', hash)
end
redis.call('XLEN', audit)
local contents = { unpack(ARGV, 4) }
if #contents == 0 then
  limit = redis.call('HLEN', dead_body) > 0 and math.min(limit, 256) or limit
  contents = redis.call('ZRANGEBYSCORE', dead, '-inf', '(' .. before_ms, 'LIMIT', 0, limit)
end
if #contents == 0 then
  return 0
end
local dropped = redis.call('ZREM', dead, unpack(contents))
redis.call('HDEL', reason, unpack(contents))
redis.call('HDEL', dead_body, unpack(contents))
write_totals(meta, { purged = dropped })
if actor ~= '' then
  local named = #contents == 1 and contents[1] or ''
  note(audit, actor, 'purge dead', named, #contents .. ' messages', 'dropped ' .. dropped)
end
return dropped
