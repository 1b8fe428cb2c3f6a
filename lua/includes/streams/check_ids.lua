-- Whether the entries from ARGV[at] on may get the ids that they ask for, if any does: all of a call have one then, and
-- they rise. An id up to the last one of the stream is right only where that very entry stands there: it was sent
-- before, and the reply was lost. Returns an error or nil, and how many entries at the beginning are there already.
-- @include ids_in_order
local function same_entry(store, at)
  local found = redis.call('XRANGE', store, ARGV[at + 2], ARGV[at + 2])[1]
  if not found or #found[2] ~= tonumber(ARGV[at]) - 2 then
    return false
  end
  for i, value in ipairs(found[2]) do
    if value ~= ARGV[at + 2 + i] then
      return false
    end
  end
  return true
end

local function check_ids(store, at, number)
  local last, named, there = nil, 0, 0
  for each = 1, number do
    if ARGV[at + 1] == 'rmq:id' then
      local id = ARGV[at + 2]
      if not last then
        local about = redis.pcall('XINFO', 'STREAM', store)
        if about.err and redis.call('EXISTS', store) == 1 then -- no right to it
          return about, 0
        end
        for i = 1, about.err and 0 or #about, 2 do
          last = about[i] == 'last-generated-id' and about[i + 1] or last
        end
        last = last or '0-0'
      end
      if before(last, id) then
        last = id
      elseif there == each - 1 and same_entry(store, at) then
        there = each
      else
        return redis.error_reply('RMQ_ID ' .. id .. ' ' .. last), 0
      end
      named = named + 1
    end
    at = at + 1 + tonumber(ARGV[at])
  end
  if named > 0 and named < number then
    return redis.error_reply('RMQ_IDS ' .. named .. ' ' .. number), 0
  end
  return nil, there
end
