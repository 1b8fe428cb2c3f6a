-- Pause or resume the claims of one slot, or of a stream group on it, for the whole cluster.
--
-- KEYS[1]  meta   HASH  paused and more; a group's own HASH for a stream group
-- KEYS[2]  wake   channel
-- KEYS[3]  audit  STREAM  who steered what
-- ARGV[1]  pause    '1' to pause, '0' to resume
-- ARGV[2]  publish  command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[3]  actor    who, for the audit; empty for no line
-- ARGV[4]  detail   what is meant, for the audit
-- Returns: '1' where that changed something, else '0'
-- Errors: none of its own
-- Complexity: O(1)
-- Notes: atomic; safe to repeat. What is in flight goes on, and so do leases, acks and sends.
-- @include totals, redis

local meta, wake, audit = KEYS[1], KEYS[2], KEYS[3]
local pause, publish, actor, detail = ARGV[1] == '1', ARGV[2], ARGV[3], ARGV[4]

redis.call('XLEN', audit)
local was_paused = redis.call('HGET', meta, 'paused') == '1'
replicate(meta)
redis.call('HDEL', meta, 'paused')
if pause then
  redis.call('HSET', meta, 'paused', '1')
end
local changed = was_paused ~= pause and '1' or '0'
note(audit, actor, pause and 'pause' or 'resume', '', detail, changed == '1' and 'done' or 'unchanged')
if not pause then
  hint(publish, wake, '0')
end
return changed
