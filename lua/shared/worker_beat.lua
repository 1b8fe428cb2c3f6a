-- Note that a worker is alive and what it does, or that it has left; forget those that were silent for long.
--
-- KEYS[1]  beats  ZSET  worker -> its last sign of life, ms
-- KEYS[2]  infos  HASH  worker -> what it does, JSON
-- ARGV[1]  name       of the worker
-- ARGV[2]  info       JSON; empty: it has left
-- ARGV[3]  forget_ms  after so long a silent one is forgotten
-- ARGV[4]  most       workers to keep, the latest ones
-- Returns: now_ms
-- Errors: none of its own
-- Complexity: O(log N)
-- Notes: safe to repeat.
-- @include clock, redis

local beats, infos = KEYS[1], KEYS[2]
local name, info, forget_ms, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local now_ms = read_clock()
redis.call('HLEN', infos)
redis.call('ZREMRANGEBYRANK', beats, 1, 0) -- a removal first: it also works on a full Redis
if info ~= '' then -- before others go: in a hash slot that moves, a key that was emptied is out of reach
  redis.call('HSET', infos, name, info)
  redis.call('ZADD', beats, whole(now_ms), name)
end
local silent = redis.call('ZRANGEBYSCORE', beats, '-inf', whole(now_ms - forget_ms), 'LIMIT', 0, 100)
for _, early in ipairs(redis.call('ZRANGEBYSCORE', beats, '(' .. whole(now_ms), '+inf', 'LIMIT', 0, 100)) do
  redis.call('ZADD', beats, whole(now_ms), early) -- the clock was ahead then: who is gone shall not look alive
end
local excess = math.min(redis.call('ZCARD', beats) - most, 100)
if excess > #silent then
  silent = redis.call('ZRANGE', beats, 0, excess - 1)
end
silent[#silent + 1] = info == '' and name or nil
if #silent > 0 then
  redis.call('ZREM', beats, unpack(silent))
  redis.call('HDEL', infos, unpack(silent))
end
return whole(now_ms)
