-- Groups of a stream: position, pending list, account of what was read, lost and trimmed.
-- @include clock, redis, stream_ids

-- The groups of a stream, as XINFO GROUPS says; none without the stream. Second, the one of this name, if there is.
local function groups_of(store, name)
  local groups, named = redis.pcall('XINFO', 'GROUPS', store), nil
  groups = groups.err and {} or groups
  for _, found in ipairs(groups) do
    if found[2] == name then
      named = found
    end
  end
  return groups, named
end

-- How many entries come after an id, and whether these are all: it counts up to 1,000, or 1 MiB.
local function count_after(store, id)
  local number, bytes = 0, 0
  local page
  repeat
    page = redis.call('XRANGE', store, '(' .. id, '+', 'COUNT', 10)
    for _, entry in ipairs(page) do
      number, id = number + 1, entry[1]
      for _, text in ipairs(entry[2]) do
        bytes = bytes + #text
      end
    end
  until #page < 10 or number >= 1000 or bytes >= 1048576
  return number, #page < 10
end

-- How many entries were ever there for a group, '' where it began at an id and the totals do not know; and how many of
-- them it has read or passed over.
local function counts_of_group(meta, group)
  local state = redis.call('HMGET', group, 'began', 'fresh', 'skipped')
  local sent = redis.call('HMGET', meta, 'accepted', 'copied')
  local added = tonumber(sent[1] or 0) + tonumber(sent[2] or 0)
  local read = whole(tonumber(state[2] or 0) + tonumber(state[3] or 0))
  return state[1] and whole(math.max(0, added - tonumber(state[1]))) or '', read
end

-- From this id on, some group has entries unread or unacked; nil where no group is.
local function first_unacked(store)
  local lowest
  for _, found in ipairs(groups_of(store)) do
    local pending = redis.call('XPENDING', store, found[2], '-', '+', 1)[1]
    local id = pending and pending[1] or id_after(found[8])
    if not lowest or is_before(id, lowest) then
      lowest = id
    end
  end
  return lowest
end

-- Drops up to `most` of the oldest entries with ids below `limit`; returns how many, and whether `until_ms` has passed.
local function trim_below(store, limit, most, approximate, until_ms)
  local gone, late = 0, false
  while gone < most and not late do -- a node of the stream has up to 100 entries, if nobody has set that otherwise
    local step = redis.call('XTRIM', store, 'MINID', '~', limit, 'LIMIT', math.min(100, most - gone))
    if step == 0 then
      gone = gone + redis.call('XTRIM', store, 'MINID', '~', limit, 'LIMIT', most - gone)
      break
    end
    gone = gone + step
    late = read_clock() > until_ms
  end
  while not approximate and gone < most and not late do
    local page = redis.call('XRANGE', store, '-', '(' .. limit, 'COUNT', math.min(most - gone, 10))
    if #page == 0 then
      break
    end
    gone = gone + redis.call('XTRIM', store, 'MINID', id_after(page[#page][1]))
  end
  return gone, late
end

-- Reads a page of a group's dead by ranks: { id, time of death, reason or '', { field, value, ... } } per entry. Fewer
-- than `limit` where they have more than 4 MiB.
local function dead_entries(dead, reason, dead_body, start, limit)
  local page, rows = redis.call('ZRANGE', dead, start, start + limit - 1, 'WITHSCORES'), {}
  local left = 4194304
  for i = 1, #page, 2 do
    if left <= 0 then
      break
    end
    local packed = redis.call('HGET', dead_body, page[i])
    left = left - (packed and #packed or 0)
    local why = redis.call('HGET', reason, page[i])
    rows[#rows + 1] = { page[i], page[i + 1], why or '', packed and cmsgpack.unpack(packed) or {} }
  end
  return rows
end

-- In whose name a delivery is held: the consumer's; or, of a claim that read many new entries, a name of its own, the
-- consumer's with `#` and the stamp of the claim. So one command acks all of it, without ids: see settle_whole_reads.
-- The score of a delivery is its delivery count, or stamp x 1000 + 1. Returns holder, delivery count, stamp or nil.
local function holder_of(slot, score)
  if score < 1e9 then
    return slot.consumer, score, nil
  end
  local stamp = math.floor(score / 1000)
  return slot.consumer .. '#' .. whole(stamp), score - 1000 * stamp, stamp
end

-- Whether what is held in this name is the consumer's: its own name, or that of one of its claims, see holder_of.
local function belongs(name, consumer)
  return name == consumer or string.sub(name, 1, #consumer + 1) == consumer .. '#'
end

-- Drops those names of claims (see holder_of) in `slot.left` that hold nothing any more.
local function drop_names(slot)
  for name in pairs(slot.left) do
    if #redis.call('XPENDING', slot.store, slot.group, '-', '+', 1, name) == 0 then
      redis.call('XGROUP', 'DELCONSUMER', slot.store, slot.group, name)
    end
  end
end

-- Which of up to 1,000 entries this holder has: id -> delivery count. One ranged reading finds them all where they come
-- in the order of the stream; the others are asked for one by one.
local function held_counts(slot, ids, holder)
  local counts = {}
  for _, row in ipairs(redis.call('XPENDING', slot.store, slot.group, ids[1], ids[#ids], #ids, holder)) do
    counts[row[1]] = row[4]
  end
  for _, id in ipairs(ids) do
    if not counts[id] then
      local row = redis.call('XPENDING', slot.store, slot.group, id, id, 1)[1]
      if row and row[2] == holder then
        counts[id] = row[4]
      end
    end
  end
  return counts
end

-- Notes that deliveries were taken from their holders: claims with a stamp up to this one may not be acked as a whole.
-- `last` is the stamp in the group's hash, the last one of the slot; `newer` one that was given since, if any.
local function note_taken(slot, last, newer)
  local stamp = tonumber(last or 0) + 1
  redis.call('HSET', slot.meta, 'taken', whole(stamp), 'stamp', whole(math.max(stamp, newer or 0)))
end
