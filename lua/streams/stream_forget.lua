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
-- @include write_totals
-- @include park
-- @include hint

local slot = { store = KEYS[1], meta = KEYS[2], retry = KEYS[3], error = KEYS[4], group = ARGV[1] }
local wake = KEYS[5]
local consumer, idle_ms, limit, publish = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

redis.call('XLEN', slot.store)
redis.call('HLEN', slot.meta)
redis.call('ZCARD', slot.retry)
redis.call('HLEN', slot.error)
local found = redis.pcall('XINFO', 'CONSUMERS', slot.store, slot.group)
local removed, given_back, totals, lost = 0, 0, {}, {}
redis.call('ZREM', slot.retry, '')
for _, row in ipairs(found.err and {} or found) do
  local name, pending, idle = row[2], row[4], row[6]
  if name == consumer and idle >= idle_ms then
    for _, held in ipairs(redis.call('XPENDING', slot.store, slot.group, '-', '+', limit, name)) do
      park(slot, held[1], held[4], 0, totals, lost)
      given_back = given_back + 1
    end
    pending = pending - given_back
  end
  local meant = consumer == '' and name ~= '(waiting)' or name == consumer
  if meant and pending <= 0 and idle >= idle_ms and removed < limit then
    redis.call('XGROUP', 'DELCONSUMER', slot.store, slot.group, name)
    removed = removed + 1
  end
end
write_totals(slot.meta, totals)
if given_back > 0 then
  hint(publish, wake, '0')
end
return { removed, given_back }
