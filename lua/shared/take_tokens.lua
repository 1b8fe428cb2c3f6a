-- Take tokens from a topic's bucket, one for each message to be claimed, or give back what was not used.
--
-- KEYS[1]  bucket  HASH  rate, burst, tokens, at_ms
-- ARGV[1]  wanted  how many to take at most; below 0: how many to give back
-- ARGV[2]  rate    messages a second where the bucket says nothing, 0 for no limit
-- ARGV[3]  burst   most tokens, likewise
-- Returns: { granted, ms until it is worth asking again, rate, '1' where the bucket was not there }; rate 0: no limit,
--   and all that was wanted is granted
-- Errors: none of its own
-- Complexity: O(1)
-- Notes: atomic; only Redis' clock counts. Not to be repeated after a lost reply: then the tokens are lost.
-- @include read_clock
-- @include whole

local bucket = KEYS[1]
local wanted, rate, burst = tonumber(ARGV[1]), ARGV[2], ARGV[3]

local now_ms = read_clock()
local known = redis.call('HMGET', bucket, 'rate', 'burst', 'tokens', 'at_ms')
redis.call('HDEL', bucket, '') -- a removal first: at maxmemory a script that begins with a write is refused
if not known[1] then
  redis.call('HSET', bucket, 'rate', rate, 'burst', burst)
end
local made = known[1] and '0' or '1'
local per_second, most = tonumber(known[1] or rate), tonumber(known[2] or burst)
if per_second == 0 then
  return { whole(math.max(wanted, 0)), '0', '0', made }
end
local tokens = most
if known[3] then
  local gone_ms = math.max(0, now_ms - tonumber(known[4]))
  tokens = math.min(most, tonumber(known[3]) + gone_ms * per_second / 1000)
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
end
redis.call('HSET', bucket, 'tokens', string.format('%.17g', tokens), 'at_ms', whole(now_ms))
return { whole(granted), whole(wait_ms), known[1] or rate, made }
