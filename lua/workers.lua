-- Read who works and what they do.
--
-- KEYS[1]  beats  ZSET  worker -> its last sign of life, ms
-- KEYS[2]  infos  HASH  worker -> what it does, JSON
-- ARGV[1]  limit  most workers, 1 to 1,000, the latest signs of life first
-- Returns: { now_ms, worker, its last sign of life, what it does, ... }
-- Errors: none of its own
-- Complexity: O(limit)
-- Notes: reads only.
-- @include read_clock
-- @include whole

local beats, infos = KEYS[1], KEYS[2]
local limit = tonumber(ARGV[1])

local answer = { whole(read_clock()) }
local rows = redis.call('ZREVRANGE', beats, 0, limit - 1, 'WITHSCORES')
for i = 1, #rows, 2 do
  local info = redis.call('HGET', infos, rows[i])
  if info then
    answer[#answer + 1] = rows[i]
    answer[#answer + 1] = rows[i + 1]
    answer[#answer + 1] = info
  end
end
return answer
