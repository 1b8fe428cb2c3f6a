-- The totals of a slot, fields of meta: name -> how many since the topic began. Invariant: accepted = merged + dropped
-- + what is in store, prepare, retry and dead + what has left (`unaccounted` in stats). Settlements add theirs last.
-- @include redis

-- Notes in a table of totals that something happened `number` times.
local function tally(totals, name, number)
  totals[name] = (totals[name] or 0) + number
end

-- Adds to the slot's counters: name -> how many.
local function write_totals(meta, totals)
  for name, number in pairs(totals) do
    if number ~= 0 then
      redis.call('HINCRBY', meta, name, whole(number))
    end
  end
end

-- The totals that most claims change, as fields of meta and their new values: they are written along with the stamp,
-- and leave `totals`. `stored`: what check_fence has read.
local function fields_of(totals, stored)
  local fields = {}
  for i, name in ipairs({ 'delivered', 'acked' }) do
    local before = tonumber(stored[5 + i] or 0)
    if totals[name] and before then
      fields[#fields + 1], fields[#fields + 2] = name, whole(before + totals[name])
      totals[name] = nil
    end
  end
  return fields
end

-- Writes a hash and leaves it as it was, be it there or not. What a durable script answers has to be as safe as what it
-- writes, and since Redis 7.2 WAIT and WAITAOF wait for the writes of their own connection only: a path that changes
-- nothing, since another call was faster, writes this. It begins with a removal, so that it works at maxmemory.
local function replicate(hash)
  redis.call('HDEL', hash, 'written')
  redis.call('HSET', hash, 'written', '1')
  redis.call('HDEL', hash, 'written')
end
