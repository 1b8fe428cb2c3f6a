-- Append one minute's record to each of several rings of bounded length.
--
-- KEYS[1..] rings  LIST  records, the oldest first: the epoch minute, a space, figures
-- ARGV[1..] records  of each ring its record, which begins with the minute; then the epoch minute of the records, the
--   records kept, and the seconds until a ring that nobody writes to is gone
-- Returns: per ring '1' if its record was appended, '0' if this minute or a later one is there already; records of
--   minutes that lie ahead are dropped: they are from a clock that was wrong
-- Errors: none of its own
-- Complexity: O(log most) a ring, and the records dropped
-- Notes: atomic, safe to repeat.
-- @include clock

local minute, most, keep_s = tonumber(ARGV[#KEYS + 1]), tonumber(ARGV[#KEYS + 2]), ARGV[#KEYS + 3]

local newest = math.floor(read_clock() / 60000) + 1 -- another server's clock, which named the minute, may be ahead

local function minute_at(ring, index)
  local found = redis.call('LINDEX', ring, index)
  return found and tonumber(string.match(found, '^%d+') or 0) or 0
end

local function append(ring, record)
  local none = false
  if minute_at(ring, -1) > math.max(newest, minute) then
    local first, after = 0, redis.call('LLEN', ring) -- minutes rise: the first that lies ahead is found by halving
    while first < after do
      local middle = math.floor((first + after) / 2)
      if minute_at(ring, middle) > math.max(newest, minute) then
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
  if not none and minute_at(ring, -1) >= minute then
    return '0'
  end
  redis.call('RPUSH', ring, record)
  redis.call('LTRIM', ring, none and -1 or -most, -1)
  redis.call('EXPIRE', ring, keep_s)
  return '1'
end

local appended = {}
for i, ring in ipairs(KEYS) do
  appended[i] = append(ring, ARGV[i])
end
return appended
