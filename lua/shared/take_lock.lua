-- Take, keep or end a lock with an expiry: one holder at a time has it.
--
-- KEYS[1]  lock  HASH  field -> holder, end of its time (ms)
-- ARGV[1]  field    of the lock
-- ARGV[2]  holder   names the caller
-- ARGV[3]  hold_ms  for how long nobody else has the lock, from now on; 0 ends it
-- ARGV[4]  how      `take`: where nobody else has it; `keep`: only where the holder had it last; `period`: as `take`,
--   to the end of the current one of the periods of hold_ms since 1970; the key expires after two of them
-- Returns: { who has the lock or '', until when, ms, Redis' time, ms }
-- Errors: none of its own
-- Complexity: O(1)
-- Notes: atomic; safe to repeat.
-- @include clock, fence, redis

local lock = KEYS[1]
local field, holder, hold_ms, how = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local now_ms = read_clock()
local last, till, _, held = read_lock(lock, field, now_ms, hold_ms > 0 and 2 * hold_ms or 3600000)
if last ~= holder and (held or how == 'keep') then
  return { last or '', whole(till), whole(now_ms) }
end
redis.call('HDEL', lock, '') -- a removal first: it works at maxmemory
if hold_ms == 0 then
  redis.call('HDEL', lock, field)
  return { '', '0', whole(now_ms) }
end
till = how == 'period' and (math.floor(now_ms / hold_ms) + 1) * hold_ms or now_ms + hold_ms
write_lock(lock, field, holder, till)
if how == 'period' then
  redis.call('PEXPIRE', lock, whole(2 * hold_ms))
end
return { holder, whole(till), whole(now_ms) }
