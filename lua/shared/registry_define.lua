-- Put a definition in place of the one that was read, or remove that one, unless somebody else was faster.
--
-- KEYS[1]  topics    HASH  topic -> its definition, JSON
-- ARGV[1]  name      topic
-- ARGV[2]  expected  the definition that must be there, byte for byte
-- ARGV[3]  text      the definition to put there; empty: remove it
-- Returns: '1' if it is there now, '0' if another one was there than was expected, and nothing was written
-- Errors: none of its own
-- Complexity: O(1)
-- Notes: atomic; repeated, it answers '0', and the caller reads its own definition. It begins with a removal, so that
--   a topic can be deleted, or bounded, at maxmemory. With the same text twice it changes nothing; a WAIT behind it
--   covers a definition that somebody else has put there.
-- @include totals

local topics, name, expected, text = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

local there = redis.call('HGET', topics, name) == expected
replicate(topics)
if there and text == '' then
  redis.call('HDEL', topics, name)
elseif there and text ~= expected then
  redis.call('HSET', topics, name, text)
end
return there and '1' or '0'
