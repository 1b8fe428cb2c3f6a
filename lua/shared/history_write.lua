-- Append one minute's record to a ring of bounded length.
--
-- KEYS[1]  ring  LIST  records, the oldest first: the epoch minute, a space, figures
-- ARGV[1]  minute  epoch minute of the record
-- ARGV[2]  record  the whole record, beginning with the minute
-- ARGV[3]  most    records kept
-- ARGV[4]  keep_s  seconds until a ring that nobody writes to is gone
-- Returns: '1' if it was appended, '0' if this minute or a later one is there already
-- Errors: none of its own
-- Complexity: O(1)
-- Notes: atomic, safe to repeat.

local ring, minute, record, most, keep_s = KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]

local last = redis.call('LINDEX', ring, -1)
if last and tonumber(string.match(last, '^%d+') or 0) >= minute then
  return '0'
end
redis.call('RPUSH', ring, record)
redis.call('LTRIM', ring, -most, -1)
redis.call('EXPIRE', ring, keep_s)
return '1'
