-- Remove consumers of a group that are gone: a named one, whose deliveries then go to the others at once, or all that
-- hold nothing and were not seen for a while.
--
-- KEYS[1]  store  STREAM
-- KEYS[2]  group  HASH  epoch, ensemble, paused, state of the pass over the pending list, totals
-- KEYS[3]  retry  ZSET  padded id -> due ms
-- KEYS[4]  error  HASH  id -> last failure, JSON
-- KEYS[5]  wake   channel
-- ARGV[1]  group     its name
-- ARGV[2]  consumer  whom to remove; empty for all that hold nothing
-- ARGV[3]  idle_ms   those not seen for so long, ms
-- ARGV[4]  limit     most deliveries to give back, or consumers to remove, 1 to 1,000
-- ARGV[5]  publish   command for the wake hint: PUBLISH or SPUBLISH
-- Returns: { consumers removed, deliveries given back }; 0 removed and `limit` given back: call it again
-- Errors: none of its own
-- Complexity: O(consumers + limit x log N)
-- Notes: safe to repeat. A live consumer that is removed while it holds nothing comes back by itself.
-- @include totals, redis, stream_groups, stream_settlements

local slot = { store = KEYS[1], meta = KEYS[2], retry = KEYS[3], error = KEYS[4], group = ARGV[1] }
local wake = KEYS[5]
local consumer, idle_ms, limit, publish = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

redis.call('XLEN', slot.store)
redis.call('HLEN', slot.meta)
redis.call('ZCARD', slot.retry)
redis.call('HLEN', slot.error)
local found = redis.pcall('XINFO', 'CONSUMERS', slot.store, slot.group)
found = found.err and {} or found
local removed, given_back, totals, lost, named, left = 0, 0, {}, {}, consumer ~= '', false
local seen_ms = idle_ms -- of its names, the one that was seen last counts
for _, row in ipairs(found) do
  if named and belongs(row[2], consumer) then
    seen_ms = math.min(seen_ms, row[6])
  end
end
redis.call('ZREMRANGEBYRANK', slot.retry, 1, 0)
for i = #found, 1, -1 do -- the names of its claims come before its own
  local name, pending, idle = found[i][2], found[i][4], found[i][6]
  local meant = not named and name ~= '(waiting)' or named and belongs(name, consumer) and seen_ms >= idle_ms
  if named and meant and pending > 0 and given_back < limit then
    local held = redis.call('XPENDING', slot.store, slot.group, '-', '+', limit - given_back, name)
    for _, row in ipairs(held) do
      park(slot, row[1], row[4], 0, totals, lost)
    end
    given_back, pending = given_back + #held, pending - #held
  end
  left = left or named and meant and pending > 0 -- its own name goes last: then nothing of it is left
  if meant and pending <= 0 and (named and (name ~= consumer or not left) or not named and idle >= idle_ms)
      and removed < limit then
    redis.call('XGROUP', 'DELCONSUMER', slot.store, slot.group, name)
    removed = removed + (string.find(name, '#', 1, true) and 0 or 1)
  end
end
if given_back > 0 then
  note_taken(slot, redis.call('HGET', slot.meta, 'stamp'))
end
write_totals(slot.meta, totals)
if given_back > 0 then
  hint(publish, wake, '0')
end
return { removed, given_back }
