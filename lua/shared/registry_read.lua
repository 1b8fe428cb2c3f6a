-- Read registered definitions by name.
--
-- KEYS[1]    topics  HASH  topic -> its definition, JSON
-- ARGV[1]    most_bytes  longest definition that is handed over, bytes
-- ARGV[2..]  names    of topics, up to 1,000
-- Returns: { definition, ... }: for each name its text; its length, a number, where it is longer; nil where it is not
--   there. Beyond 1 MiB of definitions the other names are left to further calls; the first one never is
-- Errors: none of its own
-- Complexity: O(names)
-- Notes: reads only. One foreign value of any length hides no other definition.

local topics, most = KEYS[1], tonumber(ARGV[1])

local found, left = {}, 1048576
for i = 2, #ARGV do
  if left <= 0 then
    break
  end
  local length = redis.call('HSTRLEN', topics, ARGV[i])
  if length > most then
    found[i - 1] = length
  else
    found[i - 1] = redis.call('HGET', topics, ARGV[i])
    left = left - length
  end
end
return found
