-- Append one minute's record to a ring of bounded length.
--
-- KEYS[1]  ring  LIST  records, the oldest first: the epoch minute, a space, figures
-- ARGV[1]  minute  epoch minute of the record
-- ARGV[2]  record  the whole record, beginning with the minute
-- ARGV[3]  most    records kept
-- ARGV[4]  keep_s  seconds until a ring that nobody writes to is gone
-- Returns: '1' if it was appended, '0' if this minute or a later one is there already; records of minutes that lie
--   ahead are dropped: they are from a clock that was wrong
-- Errors: none of its own
-- Complexity: O(log most), and the records dropped
-- Notes: atomic, safe to repeat.
-- @include clock

local ring, minute, record, most, keep_s = KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]

local newest = math.floor(read_clock() / 60000) + 1 -- another server's clock, which named the minute, may be ahead
local function minute_at(index)
  local found = redis.call('LINDEX', ring, index)
  return found and tonumber(string.match(found, '^%d+') or 0) or 0
end

local none = false
if minute_at(-1) > math.max(newest, minute) then
  local first, after = 0, redis.call('LLEN', ring) -- minutes rise: the first that lies ahead is found by halving
  while first < after do
    local middle = math.floor((first + after) / 2)
    if minute_at(middle) > math.max(newest, minute) then
      after = middle
    else
      first = middle + 1
    end
  end
  none = first == 0 -- they go once the new one is there: in a hash slot that moves, an emptied key is out of reach
  if not none then
    redis.call('LTRIM', ring, 0, first - 1)
  end
end
if not none and minute_at(-1) >= minute then
  return '0'
end
redis.call('RPUSH', ring, record)
redis.call('LTRIM', ring, none and -1 or -most, -1)
redis.call('EXPIRE', ring, keep_s)
return '1'
