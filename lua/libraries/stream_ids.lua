-- Ids of stream entries: two numbers up to 2^64 - 1, compared as digits. Entries are appended here, with ids that the
-- server or the sender gives. Invariant: ids of a stream only grow.
-- @include redis

-- Ids of entries are two numbers and not one: which of two comes first. The numbers go up to 2^64 - 1, beyond what Lua
-- counts, so that they are compared as digits.
local function split_id(id)
  return string.match(id, '^0*(%d+)%-0*(%d+)$')
end

local function less(a, b)
  return #a < #b or #a == #b and a < b
end

local function is_before(a, b)
  local a_ms, a_sequence = split_id(a)
  local b_ms, b_sequence = split_id(b)
  return less(a_ms, b_ms) or a_ms == b_ms and less(a_sequence, b_sequence)
end

local function plus_one(number)
  local head, digit, nines = string.match(number, '^(%d-)([0-8]?)(9*)$')
  return head .. (digit == '' and '1' or whole(digit + 1)) .. string.rep('0', #nines)
end

-- The id after another one. Its numbers go up to 2^64 - 1, beyond what Lua counts: digit by digit.
local function id_after(id)
  local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
  if sequence == '18446744073709551615' then
    return plus_one(ms) .. '-0'
  end
  return ms .. '-' .. plus_one(sequence)
end

-- An entry's id with its sequence number filled up with zeros: such ids sort as text as they do as numbers, so that
-- entries due at the same time keep the order of the stream. Redis reads them like any other.
local function padded_id(id)
  local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
  return ms .. '-' .. string.rep('0', 20 - #sequence) .. sequence
end

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

-- Whether the entries from ARGV[at] on may get the ids that they ask for, if any does: all of a call have one then, and
-- they rise. An id up to the last one of the stream is right only where that very entry stands there: it was sent
-- before, and the reply was lost. An id such as `5-*` gets its second number here, and stands in ARGV as a whole one
-- from then on: the number after that of the last id, 0 where the first ones differ. Redis itself does so from 7.0 on.
-- Returns an error or nil, and how many entries at the beginning are there already.
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
      if is_before(last, id) then
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

-- Appends `number` entries to a stream; from ARGV[at] on, for each: how many values follow, then field, value, ... The
-- first field may be `rmq:id`, with the id that it is to have, see check_ids.
-- Who reads many at a time has to know how large they may be: of entries above 16 KiB `largest` in meta keeps the size.
-- `sized` in meta says that it was kept from the first entry on. Returns their ids if `detailed`, else an empty table.
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
