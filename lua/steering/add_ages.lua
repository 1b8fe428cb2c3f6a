-- Give the plain priorities of one slot's backlog ages, the highest first: the topic has become one that delivers the
-- oldest of equal priorities first.
--
-- KEYS[1]  store    ZSET  content -> score
-- KEYS[2]  meta     HASH  written, and left as it was
-- ARGV[1]  max_retries  0 to 999: scores up to it are rollbacks
-- ARGV[2]  scale        of the scores: see aged
-- ARGV[3]  unit_ms      of the ages
-- ARGV[4]  limit        most messages, 1 to 500
-- Returns: how many messages had no age
-- Errors: none of its own
-- Complexity: O(n log N)
-- Notes: atomic. Safe to repeat, and needed once more where a sender that knows no ages has sent since. The age of a
--   message counts from now.
-- @include read_clock
-- @include whole
-- @include aged
-- @include replicate

local store, meta = KEYS[1], KEYS[2]
local max_retries, scale, unit_ms, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local now_ms = read_clock()
local most = 9007199254740992 / scale - 1 -- who knows no ages may send a larger priority, with which no age fits
local above, below = '(' .. max_retries, '(' .. whole(scale)
local plain = redis.call('ZREVRANGEBYSCORE', store, below, above, 'WITHSCORES', 'LIMIT', 0, limit)
redis.call('HLEN', meta)
replicate(meta)
for i = 1, #plain, 2 do
  local priority = math.min(tonumber(plain[i + 1]), most)
  redis.call('ZADD', store, whole(aged(priority, scale, unit_ms, now_ms)), plain[i])
end
return whole(#plain / 2)
