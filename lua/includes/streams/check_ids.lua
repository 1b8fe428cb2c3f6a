-- Whether the entries from ARGV[at] on may get the ids that they ask for, if any does: all of a call have one then, and
-- they rise. An id up to the last one of the stream is right only where that very entry stands there: it was sent
-- before, and the reply was lost. An id such as `5-*` gets its second number here, and stands in ARGV as a whole one
-- from then on: the number after that of the last id, 0 where the first ones differ. Redis itself does so from 7.0 on.
-- Returns an error or nil, and how many entries at the beginning are there already.
-- @include ids_in_order
-- @include whole
local function whole_id(wanted, last)
  local ms = string.match(wanted, '^(%d+)%-%*$')
  if not ms then
    return wanted
  end
  local last_ms, last_sequence = split_id(last)
  if ms ~= last_ms then
    return ms .. '-0'
  end
  return #last_sequence > 15 and last or ms .. '-' .. whole(tonumber(last_sequence) + 1) -- beyond, Lua does not count
end

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
      local wanted = ARGV[at + 2]
      local id = whole_id(wanted, last)
      if before(last, id) then
        last, ARGV[at + 2] = id, id
      elseif id == wanted and there == each - 1 and same_entry(store, at) then
        there = each
      else
        return redis.error_reply('RMQ_ID ' .. wanted .. ' ' .. last), 0
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
