-- Write a line into the audit, for steps that take many calls.
--
-- KEYS[1]  audit  STREAM  who steered what
-- ARGV[1]  actor    who
-- ARGV[2]  action   what
-- ARGV[3]  detail   on which messages
-- ARGV[4]  outcome  what came of it
-- Returns: nothing
-- Errors: none of its own
-- Complexity: O(1)
-- Notes: keeps about the last 1,000 lines.
-- @include redis

local audit = KEYS[1]
local actor, action, detail, outcome = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

redis.call('XTRIM', audit, 'MAXLEN', '~', 1000) -- a removal first: a full Redis can be purged
note(audit, actor, action, '', detail, outcome)
return false
