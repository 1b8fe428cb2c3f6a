-- Read a part of one place of a slot, with bodies, and with reasons for the dead, or without them.
--
-- KEYS[1]  zset    ZSET  content -> score
-- KEYS[2]  body    HASH  content -> body, of what is in this place
-- KEYS[3]  reason  HASH  content -> why it died, JSON
-- ARGV[1]  how     `scan`: the part from a cursor on; `named`: the contents that follow
-- ARGV[2]  cursor  0 to begin
-- ARGV[3]  most    `scan`: about how many to go over, 1 to 1,000
-- ARGV[4]  reasons '1': with reasons
-- ARGV[5]  bodies  '1': with bodies
-- ARGV[6..] contents  of `named`, at most 1,000
-- Returns: { now_ms, next cursor, '0' at the end, size of the place, { content, score, ... }, { body or nil, ... },
--   { reason or nil, ... }, contents that are still to be read by name }; the table of bodies is empty where none has
--   one. Beyond 4 MiB contents are left to be read by name
-- Errors: none of its own
-- Complexity: O(most)
-- Notes: reads only. By `scan`, what is there all the time is found at least once, perhaps twice.
-- @include clock, redis

local zset, body, reason = KEYS[1], KEYS[2], KEYS[3]
local how, cursor, most, with_reasons, with_bodies = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1', ARGV[5] == '1'

local function values_of(hash, names)
  local values = {}
  for first = 1, #names, 1000 do
    local last = math.min(first + 999, #names)
    for i, value in ipairs(redis.call('HMGET', hash, unpack(names, first, last))) do
      values[first + i - 1] = value
    end
  end
  return values
end

-- a page of a scan of a small place can have more than 1,000
local function some_bodies(names)
  if not with_bodies or redis.call('HLEN', body) == 0 then
    return {}, #names
  end
  if #names <= 1000 then
    return bodies_within(body, names, 4194304)
  end
  return bodies_within(body, { unpack(names, 1, 1000) }, 4194304)
end

local size = redis.call('ZCARD', zset)
local items, following = {}, '0'
if how == 'scan' then
  following, items = scan_within(zset, cursor, '*', most, 4194304)
else
  for i = 6, #ARGV do
    local score = redis.call('ZSCORE', zset, ARGV[i])
    if score then
      items[#items + 1] = ARGV[i]
      items[#items + 1] = score
    end
  end
end
local names, rest = {}, {}
for i = 1, #items, 2 do
  names[#names + 1] = items[i]
end
local bodies, number = some_bodies(names)
for i = number + 1, #names do
  rest[#rest + 1] = names[i]
  names[i], items[2 * i - 1], items[2 * i] = nil, nil, nil
end
local reasons = with_reasons and values_of(reason, names) or {}
return { whole(read_clock()), following, whole(size), items, bodies, reasons, rest }
