-- Read who works and what they do.
--
-- KEYS[1]  beats  ZSET  worker -> its last sign of life, ms
-- KEYS[2]  infos  HASH  worker -> what it does, JSON
-- ARGV[1]  limit    most workers, 1 to 1,000, the latest signs of life first
-- ARGV[2]  longest  bytes of the longest report that is handed over; a worker with a longer one is left out
-- ARGV[3..] names    of workers, at most 1,000: only these
-- Returns: { now_ms, { worker, its last sign of life, what it does, ... }, workers that are still to be read by name };
--   beyond 256 KiB of reports the others are left to further calls, the first one is not
-- Errors: none of its own
-- Complexity: O(limit)
-- Notes: reads only. A worker that has left meanwhile is left out.
-- @include clock, redis

local beats, infos = KEYS[1], KEYS[2]
local limit, longest = tonumber(ARGV[1]), tonumber(ARGV[2])

local workers, seen = { unpack(ARGV, 3) }, {}
if #workers > 0 then
  seen = redis.call('ZMSCORE', beats, unpack(workers))
else
  local rows = redis.call('ZREVRANGE', beats, 0, limit - 1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    workers[#workers + 1], seen[#seen + 1] = rows[i], rows[i + 1]
  end
end
local names, last_beats, rest, left = {}, {}, {}, 262144
for n, worker in ipairs(workers) do
  local length = redis.call('HSTRLEN', infos, worker)
  if seen[n] and length > 0 and length <= longest then
    if left < length and #names > 0 then
      left, rest[#rest + 1] = 0, worker
    else
      left, names[#names + 1], last_beats[#last_beats + 1] = left - length, worker, seen[n]
    end
  end
end
local rows, reports = {}, #names > 0 and redis.call('HMGET', infos, unpack(names)) or {}
for n, worker in ipairs(names) do
  rows[3 * n - 2], rows[3 * n - 1], rows[3 * n] = worker, last_beats[n], reports[n]
end
return { whole(read_clock()), rows, rest }
