-- Appends `number` entries to a stream; from ARGV[at] on, for each: how many values follow, then field, value, ... The
-- first field may be `rmq:id`, with the id that it is to have, see check_ids.
-- Who reads many at a time has to know how large they may be: of entries above 16 KiB `largest` in meta keeps the size.
-- `sized` in meta says that it was kept from the first entry on. Returns their ids if `detailed`, else an empty table.
-- @include whole
local function append_entries(store, meta, at, number, detailed)
  local ids, largest = {}, 16384
  for _ = 1, number do
    local last, first, wanted, bytes = at + tonumber(ARGV[at]), at + 1, '*', 0
    if ARGV[first] == 'rmq:id' then
      wanted, first = ARGV[first + 1], first + 2
    end
    local id = redis.call('XADD', store, wanted, unpack(ARGV, first, last))
    for i = first, last do
      bytes = bytes + #ARGV[i]
    end
    largest = math.max(largest, bytes)
    if detailed then
      ids[#ids + 1] = id
    end
    at = last + 1
  end
  if largest > 16384 and largest > tonumber(redis.call('HGET', meta, 'largest') or 0) then
    redis.call('HSET', meta, 'largest', whole(largest))
  end
  if redis.call('HINCRBY', meta, 'accepted', whole(number)) == number then
    redis.call('HSET', meta, 'sized', '1')
  end
  return ids
end
