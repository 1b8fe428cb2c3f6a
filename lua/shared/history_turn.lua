-- Take the turn to record this minute's statistics, unless somebody has it.
--
-- KEYS[1]  turn  STRING  the last minute that somebody took
-- ARGV[1]  keep_s  seconds until an unused turn is forgotten
-- Returns: { now_ms, epoch minute if the turn is the caller's else '0' }
-- Errors: none of its own
-- Complexity: O(1)
-- Notes: atomic. Whoever takes the turn and dies leaves a gap of one minute.
-- @include read_clock
-- @include whole

local turn, keep_s = KEYS[1], ARGV[1]

local now_ms = read_clock()
local minute = math.floor(now_ms / 60000)
local taken = tonumber(redis.call('GET', turn) or 0)
if taken == minute or taken == minute + 1 then -- one further ahead is from a clock that was wrong
  return { whole(now_ms), '0' }
end
redis.call('SET', turn, whole(minute), 'EX', keep_s)
return { whole(now_ms), whole(minute) }
