-- Put a definition in place of the one that was read, unless somebody else was faster.
--
-- KEYS[1]  topics    HASH  topic -> its definition, JSON
-- ARGV[1]  name      topic
-- ARGV[2]  expected  the definition that must be there, byte for byte
-- ARGV[3]  text      the definition to put there
-- Returns: '1' if it is there now, '0' if another one was there than was expected, and nothing was written
-- Errors: none of its own
-- Complexity: O(1)
-- Notes: atomic; repeated, it answers '0', and the caller reads its own definition. With the same text twice it changes
--   nothing, also at maxmemory; a WAIT behind it covers a definition that somebody else has put there.
-- @include totals

local topics, name, expected, text = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

local there = redis.call('HGET', topics, name) == expected
if there and text ~= expected then
  redis.call('HSET', topics, name, text)
else
  replicate(topics)
end
return there and '1' or '0'
