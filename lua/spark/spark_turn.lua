-- Take, keep or end the turn of an archive's run: one at a time writes.
--
-- KEYS[1]  group  HASH  run
-- ARGV[1]  holder   names the run
-- ARGV[2]  hold_ms  for how long nobody else has the turn, from now on; 0 ends it
-- ARGV[3]  keep     '1': only where the holder has it; '0': also where nobody has it
-- Returns: { who has the turn or '', until when, ms }
-- Errors: none of its own
-- Complexity: O(1)
-- Notes: atomic; safe to repeat.
-- @include read_clock
-- @include whole

local group = KEYS[1]
local holder, hold_ms, keep = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'

local now_ms = read_clock()
local whose, till = string.match(redis.call('HGET', group, 'run') or '', '^(%S+) (%d+)$')
till = tonumber(till or 0)
local longest = hold_ms > 0 and 2 * hold_ms or 3600000
local others = whose and whose ~= holder and till > now_ms and till <= now_ms + longest -- else the clock was ahead
if others or (keep and whose ~= holder) then
  return { whose or '', whole(till) }
end
redis.call('HDEL', group, '') -- a removal first: it works at maxmemory
if hold_ms == 0 then
  redis.call('HDEL', group, 'run')
  return { '', '0' }
end
redis.call('HSET', group, 'run', holder .. ' ' .. whole(now_ms + hold_ms))
return { holder, whole(now_ms + hold_ms) }
