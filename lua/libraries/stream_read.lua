-- Reads new entries of a stream for a group, within the bytes that a call may hand over.
-- @include totals, redis, stream_ids, stream_groups, stream_settlements

-- Adds an entry to what a claim hands over: `out` has `flat`, entries in one flat table; `ids` and `contents`, plain
-- entries behind these (see read_plain); `tail`, those behind them, flat again; `number` of entries; `left`, bytes
-- still free; `largest`, bytes of the largest entry. Beyond `left` nothing more is taken: see is_full.
local function hand_over(out, entry, deliveries)
  local flat, values, bytes = out.ids[1] and out.tail or out.flat, entry[2], 0
  local size = #flat
  flat[size + 1], flat[size + 2], flat[size + 3] = entry[1], deliveries, #values
  for j = 1, #values do
    bytes = bytes + #values[j]
    flat[size + 3 + j] = values[j]
  end
  out.number, out.left = out.number + 1, out.left - bytes
  if bytes > out.largest then
    out.largest = bytes
  end
end

local function is_full(out)
  return out.left <= 0 and out.number > 0
end

-- Hands over the plain entries at the beginning of a page, those with a content and nothing else, as two columns: that
-- is most of what a claim costs. Only while no other entry stands behind the columns, to keep the order. Returns how
-- many there were.
local function read_plain(page, out)
  local ids, contents, bytes, largest = out.ids, out.contents, 0, out.largest
  local before, number = #ids, 0
  if out.tail[1] then
    return 0
  end
  for i = 1, #page do
    local entry = page[i]
    local values = entry[2]
    local content = values[2]
    if values[3] or values[1] ~= 'content' then
      break
    end
    ids[before + i], contents[before + i] = entry[1], content
    local size = #content + 7
    bytes, number = bytes + size, i
    if size > largest then
      largest = size
    end
  end
  out.number, out.left, out.largest = out.number + number, out.left - bytes, largest
  return number
end

-- A group that was moved back meets entries that it still has pending, or among its dead, up to the id `slot.again`:
-- these stay what they are, and its position moves past them. XREADGROUP alone would take them from who holds them.
-- Looks at up to `wanted` entries, and 4 x 100. Returns how many of the next ones are to be read: `wanted` where it is
-- past all of them.
local function pass_over(slot, wanted, totals)
  for _ = 1, 4 do
    local _, mine = groups_of(slot.store, slot.group)
    local page = is_before(mine[8], slot.again) and
      redis.call('XRANGE', slot.store, '(' .. mine[8], slot.again, 'COUNT', math.min(wanted, 100)) or {}
    if #page == 0 then
      redis.call('HDEL', slot.meta, 'again')
      slot.again = nil
      return wanted
    end
    local first, number = nil, 0
    for _, entry in ipairs(page) do
      local has = redis.call('XPENDING', slot.store, slot.group, entry[1], entry[1], 1)[1] ~= nil or
        redis.call('ZSCORE', slot.dead, entry[1]) ~= false
      if first == nil then
        first = has
      elseif has ~= first then
        break
      end
      number = number + 1
    end
    if not first then
      return number
    end
    redis.call('XGROUP', 'SETID', slot.store, slot.group, page[number][1])
    tally(totals, 'skipped', number)
  end
  return 0
end

-- Reads up to `most` entries that nobody of the group has had yet, until `out` is full. How large they are shows only
-- then. `bound`, the most bytes of any entry where known, tells how many fit for certain. Beyond that, the first
-- `piece` of them tells how many to read next, and `largest`, the size of the largest that is known, bounds it. A copy
-- that was redriven into another group is no business of this one: it is acked at once. All are held in the name of
-- `reader`; a name of a claim's own is dropped where nothing came. Returns whether there may be more, and how many it
-- read.
local function read_new(slot, reader, most, piece, bound, largest, out, totals)
  local read, others = 0, {}
  local more = true
  while more and read < most and not is_full(out) do
    local wanted, certain = most - read, bound and out.largest <= bound and math.floor(out.left / bound) or 0
    if out.number == 0 then
      certain = math.min(certain, 32) -- a release that knows of no bound may have sent what comes
    end
    if wanted > certain then
      local guess = piece
      if out.largest > 0 then
        guess = math.max(1, math.min(guess, math.floor(out.left / out.largest)))
      end
      if largest > 0 then
        -- the definition that `piece` is made of may have had a larger bound when the largest entry was sent
        local few = math.max(1, math.min(4, math.floor(9437184 / largest)))
        guess = math.min(guess, math.max(few, math.floor(out.left / largest)))
      end
      wanted = math.min(wanted, math.max(certain, guess))
    end
    if slot.again then
      wanted = pass_over(slot, wanted, totals)
      if wanted == 0 then
        break -- there is more to pass over
      end
    end
    local reply =
      redis.call('XREADGROUP', 'GROUP', slot.group, reader, 'COUNT', wanted, 'STREAMS', slot.store, '>')
    local page = reply and reply[1][2] or {}
    for i = read_plain(page, out) + 1, #page do
      local entry = page[i]
      if entry[2][1] == 'rmq:group' and entry[2][2] ~= slot.group then
        others[#others + 1] = entry[1]
      else
        hand_over(out, entry, reader == slot.consumer and 1 or 0)
      end
    end
    read, piece, more = read + #page, 4 * piece, #page == wanted
  end
  if #others > 0 then
    tally(totals, 'skipped', redis.call('XACK', slot.store, slot.group, unpack(others)))
  end
  if reader ~= slot.consumer and read == #others then
    redis.call('XGROUP', 'DELCONSUMER', slot.store, slot.group, reader)
  end
  tally(totals, 'fresh', read - #others)
  tally(totals, 'delivered', read - #others)
  return more, read - #others
end

-- Gives a pending entry to this consumer as its next delivery; one that is gone from the stream is accounted for.
local function take_over(slot, id, deliveries, out, totals, lost)
  local entry = redis.call('XCLAIM', slot.store, slot.group, slot.consumer, '0', id, 'RETRYCOUNT',
    whole(deliveries + 1))[1]
  if not entry then
    lose_entry(slot, id, totals, lost)
    return
  end
  hand_over(out, entry, deliveries + 1)
  tally(totals, 'delivered', 1)
end
