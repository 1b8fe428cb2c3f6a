-- Count one slot's dead by the type of their error, from a random sample where there are more.
--
-- KEYS[1]  dead    ZSET  content -> time of death, ms
-- KEYS[2]  reason  HASH  content -> why it died, JSON
-- ARGV[1]  sample  most dead to look at, 1 to 1,000
-- Returns: { how many are dead, type of error, how many of the sample, ... }
-- Errors: none of its own
-- Complexity: O(sample)
-- Notes: reads only.
-- @include redis, failures

local dead, reason = KEYS[1], KEYS[2]
local sample = tonumber(ARGV[1])

local rows = redis.call('HRANDFIELD', reason, sample, 'WITHVALUES')
local counts, answer = {}, { whole(redis.call('ZCARD', dead)) }
for i = 2, #rows, 2 do
  local kind = read_failure(rows[i]).type or ''
  counts[kind] = (counts[kind] or 0) + 1
end
for kind, number in pairs(counts) do
  answer[#answer + 1] = kind
  answer[#answer + 1] = whole(number)
end
return answer
