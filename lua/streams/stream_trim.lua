-- Trim the stream of one slot: by length, by age, or by what was there at the last clean-up.
--
-- KEYS[1]  store  STREAM
-- KEYS[2]  meta   HASH  totals, time of the last clean-up
-- KEYS[3]  sizes  HASH  store -> its length after the last shrinking, and the last id by then
-- ARGV[1]  every_ms     do nothing if the last clean-up is not so long ago, ms; 0: now, in any case
-- ARGV[2]  max_length   most entries to keep; -1 for no bound
-- ARGV[3]  max_age_ms   how long entries are kept, ms; -1 for no bound
-- ARGV[4]  shrink       '1': drop what was there at the last shrinking, keep what has arrived since
-- ARGV[5]  approximate  '1': whole nodes of the stream only (`~`), cheaper
-- ARGV[6]  unacked      '1': also what a group has not acked; '0': never
-- Returns: { '1' if it was time else '0', entries dropped, '1' if there is more to drop else '0', length }
-- Errors: none of its own
-- Complexity: O(dropped + groups); at most about 10,000 entries a call, and 10 ms, since large ones take their time
-- Notes: atomic: the time of the last clean-up makes sure that one of many workers does it. With '1' call it again.
-- @include clock, totals, redis, stream_ids, stream_groups

local store, meta, sizes = KEYS[1], KEYS[2], KEYS[3]
local every_ms, max_length, max_age_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local shrink, approximate, unacked = ARGV[4] == '1', ARGV[5] == '1', ARGV[6] == '1'
local most = 10000

local now_ms = read_clock()
local size = redis.call('XLEN', store)
local last_ms = tonumber(redis.call('HGET', meta, 'trimmed_at') or 0)
local earlier = redis.call('HMGET', sizes, store, 'last_id')
if every_ms > 0 and last_ms <= now_ms and now_ms - last_ms < every_ms then -- else the clock was ahead then
  return { '0', '0', '0', whole(size) }
end

local needed = not unacked and first_unacked(store) or nil
local dropped, more = 0, false

-- Drops up to `number` of the oldest entries with ids below `bound` (nil: any), and never what is still needed.
local function drop(number, bound)
  if needed and (not bound or is_before(needed, bound)) then
    bound = needed
  end
  local wanted = math.min(number, most - dropped)
  if wanted <= 0 then
    more = more or number > 0
    return
  end
  local limit = bound or '18446744073709551615-18446744073709551615'
  local gone, late = trim_below(store, limit, wanted, approximate, now_ms + 10)
  dropped = dropped + gone
  more = more or late or (gone > 0 and wanted < number)
end

replicate(meta) -- a full Redis takes the time of the clean-up, too, where nothing is to be dropped
if shrink and earlier[1] then
  drop(tonumber(earlier[1]), id_after(earlier[2]))
end
if max_age_ms >= 0 then
  drop(size - dropped, whole(math.max(0, now_ms - max_age_ms)) .. '-0')
end
if max_length >= 0 then
  drop(size - dropped - max_length, nil)
end
size = size - dropped
if not more then
  redis.call('HSET', meta, 'trimmed_at', whole(now_ms))
  if shrink then
    local last = redis.call('XREVRANGE', store, '+', '-', 'COUNT', 1)[1]
    redis.call('HSET', sizes, store, whole(size), 'last_id', last and last[1] or '0-0')
  end
elseif shrink and earlier[1] then
  redis.call('HINCRBY', sizes, store, whole(-math.min(dropped, tonumber(earlier[1]))))
end
write_totals(meta, { trimmed = dropped })
return { '1', whole(dropped), more and '1' or '0', whole(size) }
