-- Take tokens from a bucket, one for each message to be claimed, or give back what was not used.
--
-- KEYS[1]  limit   HASH  rate, burst
-- KEYS[2]  bucket  HASH  tokens, at_ms; the same key but where several have a bucket each under one limit
-- ARGV[1]  wanted  how many to take at most; below 0: how many to give back
-- ARGV[2]  rate    messages a second where the limit says nothing, 0 for no limit
-- ARGV[3]  burst   most tokens, likewise
-- Returns: { granted, ms until it is worth asking again, rate, '1' where the limit was not there }; rate 0: no limit,
--   and all that was wanted is granted
-- Errors: none of its own
-- Complexity: O(1)
-- Notes: atomic; only Redis' clock counts. Not to be repeated after a lost reply: then the tokens are lost. A bucket
--   with something else than numbers is made anew. One of several expires once it is full: a new one is full, too.
-- @include clock, redis

local limit, bucket = KEYS[1], KEYS[2]
local wanted, rate, burst = tonumber(ARGV[1]), ARGV[2], ARGV[3]

local LONGEST_WAIT_MS, LONGEST_KEPT_MS = 86400000, 1e14

-- Nil for what is no number of a bucket: something else than RMQ may have written there.
local function number_of(text)
  local number = text and tonumber(text)
  return number and number >= 0 and number < math.huge and number or nil
end

local now_ms = read_clock()
local known, stored = redis.call('HMGET', limit, 'rate', 'burst'), redis.call('HMGET', bucket, 'tokens', 'at_ms')
redis.call('HDEL', bucket, '') -- a removal first: at maxmemory a script that begins with a write is refused
local per_second, most = number_of(known[1]), number_of(known[2])
local made = '0'
if not per_second or not most then
  redis.call('HSET', limit, 'rate', rate, 'burst', burst)
  per_second, most, made = tonumber(rate), tonumber(burst), '1'
end
if per_second == 0 then
  return { whole(math.max(wanted, 0)), '0', '0', made }
end
local tokens, at_ms = number_of(stored[1]), number_of(stored[2])
if tokens and at_ms then
  tokens = math.min(most, tokens + math.max(0, now_ms - at_ms) * per_second / 1000)
else
  tokens = most
end
local granted, wait_ms = 0, 0
if wanted < 0 then
  tokens = math.min(most, tokens - wanted)
else
  granted = math.min(wanted, math.floor(tokens + 0.000001))
  tokens = math.max(0, tokens - granted)
end
if granted < wanted then -- a tenth of a second's worth makes the next trip worth while
  local worth = math.max(1, math.min(wanted - granted, most, math.floor(per_second / 10)))
  wait_ms = math.max(1, math.ceil((worth - tokens) * 1000 / per_second - 0.000001))
  wait_ms = math.min(wait_ms, LONGEST_WAIT_MS)
end
redis.call('HSET', bucket, 'tokens', string.format('%.17g', tokens), 'at_ms', whole(now_ms))
if bucket ~= limit then
  local full_ms = math.min((most - tokens) * 1000 / per_second, LONGEST_KEPT_MS)
  redis.call('PEXPIRE', bucket, whole(60000 + math.ceil(full_ms)))
end
return { whole(granted), whole(wait_ms), string.format('%.17g', per_second), made }
