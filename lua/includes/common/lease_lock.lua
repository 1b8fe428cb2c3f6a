-- A lock with an expiry, in a field of a hash: its holder, the end of the holder's time in ms, and what the holder has
-- noted, a number or nothing. A name of a holder has no blanks. Redis' clock may be set back: an end that lies further
-- ahead than `longest_ms`, for which nobody holds the lock, counts as over.
-- @include whole

-- Returns the last holder, the end of its time, what it has noted, and whether the lock is held.
local function read_lock(hash, field, now_ms, longest_ms)
  local holder, till, noted = string.match(redis.call('HGET', hash, field) or '', '^(%S+) (%d+) ?(%d*)$')
  till = tonumber(till or 0)
  return holder, till, tonumber(noted), till > now_ms and till <= now_ms + longest_ms
end

local function write_lock(hash, field, holder, till, noted)
  redis.call('HSET', hash, field, holder .. ' ' .. whole(till) .. (noted and ' ' .. whole(noted) or ''))
end
