-- Values of topics that merge: a record is a packed header and a value. The kinds C, U and J have items, as frames of
-- (length, bytes); K, R and N have a body. Invariant: an item stands once in a set (U).
-- @include merge_fold

-- Records: what the messages of a topic that merges have in place of bodies; see docs/internals/merging.md. Fields of
-- the table: `count` of sends, `first` and `last` time of sending (ms), `number`, `kind` (a letter), and `value`.
local function is_record(text)
  local a, b, c, d = string.byte(text, 1, 4)
  return a == 0 and b == 114 and c == 109 and d == 49 and #text > 36
end

local function read_record(text)
  if text and is_record(text) then
    local count, first, last, number, kind = struct.unpack('<ddddc1', text, 5)
    return { count = count, first = first, last = last, number = number, kind = kind, value = string.sub(text, 38) }
  end
  return { count = 1, first = 0, last = 0, number = 0, kind = 'K', value = text and text ~= '' and '=' .. text or '' }
end

-- The text of a record, see records.
local function write_record(record)
  return struct.pack('<c4ddddc1', '\0rm1', record.count, record.first, record.last, record.number, record.kind)
    .. record.value
end

-- Frames: the items of a record's value, each a little-endian length of 4 bytes and so many bytes. The frames of kind
-- `J` stand behind a double.
local function frames_from(kind)
  return kind == 'J' and 9 or 1
end

-- Where the frame that begins at `at` ends.
local function frame_end(value, at)
  return at + 3 + struct.unpack('<I4', value, at)
end

-- Whether a value has a frame, at the beginning of one of its own, and not across two of them.
local function has_frame(value, from, frame)
  local found, at = string.find(value, frame, from, true), from
  while found do
    while at < found do
      at = frame_end(value, at) + 1
    end
    if at == found then
      return true
    end
    found = string.find(value, frame, found + 1, true)
  end
  return false
end

-- The frames of `other` behind a value that does not have them yet, found by name: reading all of the value once is
-- cheaper than searching it for each of many.
local function join_frames(value, number, other, from)
  local known, added, at = {}, {}, from
  while at + 3 <= #value do
    local last = frame_end(value, at)
    known[string.sub(value, at, last)] = true
    at = last + 1
  end
  at = from
  while at + 3 <= #other do
    local last = frame_end(other, at)
    local frame = string.sub(other, at, last)
    if not known[frame] then
      known[frame], added[#added + 1] = true, frame
    end
    at = last + 1
  end
  return value .. table.concat(added), number + #added
end

-- A value and how many frames it has, with those of another one behind it that it does not have yet.
local function union(value, number, other, from)
  if #other > 128 then
    return join_frames(value, number, other, from)
  end
  local at = from
  while at + 3 <= #other do
    local last = frame_end(other, at)
    local frame = string.sub(other, at, last)
    if not has_frame(value, from, frame) then
      value, number = value .. frame, number + 1
    end
    at = last + 1
  end
  return value, number
end

-- The frames of a value from the one at `at` on that fit into a number of items and bytes: where the next one would
-- begin, and how many they are.
local function frames_within(value, at, most_items, most_bytes)
  local number, stop = 0, at + most_bytes - 1
  while at + 3 <= #value and number < most_items do
    local last = frame_end(value, at)
    if last > stop then
      break
    end
    at, number = last + 1, number + 1
  end
  return at, number
end

local unpack_record, pack_record, sub = struct.unpack, struct.pack, string.sub

-- Folds a send into the record that its content has, as text: as `fold_sent`, without a table where it can do without
-- one, since this is what a merging send costs. `sent`: the record of the send, with its times. Returns the text, or
-- nil and why not; whether the send has the newest version; and of the folded record, where they are known, `first`,
-- the count and the number of items.
local function fold_text(rules, text, sent, held_bytes)
  local kind, now_ms = sent.kind, sent.last
  if #text > 36 then
    local mark, count, first, last, number, stored_kind = unpack_record('<c4ddddc1', text)
    local value, folded = nil, stored_kind == kind and first > 0 and mark == '\0rm1'
    if not folded then
      value = nil
    elseif kind == 'K' then
      value = #text > 37 and sub(text, 38) or ''
    elseif kind == 'S' then
      number, value = number + sent.number, ''
      folded = number <= 9007199254740991 and number >= -9007199254740991
    elseif kind == 'X' or kind == 'I' then
      if (kind == 'X') == (sent.number > number) then
        number = sent.number
      end
      value = ''
    elseif kind == 'R' then
      value = sent.value
      if is_bodiless(value) then
        local standing = sub(text, 38)
        value = is_bodiless(standing) and value or standing
      end
    elseif kind == 'N' then
      if number > sent.number then
        value = sub(text, 38)
      else
        number, value = sent.number, sent.value
      end
    elseif kind == 'C' and held_bytes == 0 then
      number, value = number + sent.number, sub(text, 38) .. sent.value
      folded = number <= rules.max_items and #value <= rules.max_bytes
    else
      folded = false
    end
    if folded then
      if now_ms > last then
        last = now_ms
      end
      if now_ms < first then -- the clock was set back
        first = now_ms
      end
      count = count + sent.count
      local head = pack_record('<c4ddddc1', '\0rm1', count, first, last, number, kind)
      return value == '' and head or head .. value, nil, kind ~= 'N' or number == sent.number, first, count, number
    end
  end
  local stored = read_record(text)
  if stored.first == 0 then -- written by hand, without a record
    stored.first, stored.last = now_ms, now_ms
  end
  local record, refusal = fold_sent(rules, stored, sent, held_bytes)
  local newest = not (kind == 'N' and stored.kind == 'N' and stored.number > sent.number)
  if not record then
    return nil, refusal, newest
  end
  return write_record(record), nil, newest, record.first, record.count, record.number
end

-- What that costs: see fold_cost.
local function fold_text_cost(text, sent)
  local kind = sent.kind
  local cost = (kind == 'C' or kind == 'U' or kind == 'J') and 8 * #text or 2 * #text
  if kind == 'U' or kind == 'J' then
    local most = #text / 4
    local number = #text > 36 and unpack_record('<d', text, 29) or 0
    number = number > 0 and number < most and number or most
    cost = cost + (#sent.value > 128 and 768 or 100) * (number + sent.number)
  end
  return cost
end

local function new_group(text, kind)
  if not is_record(text) or string.sub(text, 37, 37) ~= kind then
    return nil
  end
  local count, first, last, number = struct.unpack('<dddd', text, 5)
  return first > 0 and { -- else it is of a hand
    text = text, kind = kind, parts = {}, known = {}, count = count, first = first, last = last, number = number,
    size = #text - 37, cost = 8 * #text, looks = 0,
  } or nil
end

-- Whether a set has an item that this call has not brought. To search for it is cheaper than to know them all, once.
local function is_stored(group, frame)
  group.looks = group.looks + 1
  if group.looks <= 8 then
    group.cost = group.cost + 80 * group.number
    return has_frame(group.text, 38, frame)
  elseif group.looks == 9 then
    group.cost = group.cost + 400 * group.number
    local text, at = group.text, 38
    while at + 3 <= #text do
      local last = frame_end(text, at)
      group.known[string.sub(text, at, last)] = true
      at = last + 1
    end
  end
  return group.known[frame]
end

-- The items of a value that a set does not have yet.
local function new_items(group, value)
  local parts, at = {}, 1
  while at + 3 <= #value do
    local last = frame_end(value, at)
    local frame = string.sub(value, at, last)
    if not group.known[frame] and not is_stored(group, frame) then
      parts[#parts + 1] = frame
    end
    at = last + 1
  end
  return parts
end

-- Puts the items that a call sends to one content together, so that what is in store is copied once, and not with each
-- of them. `gathered`: of each content, its record as far as it is known: `text`, as it is in store, and `parts`, the
-- items behind it; `known`, these items of a set, and `looks`, how many were searched for in `text`: from the ninth on
-- all of its items are known; `first`, `last`, `count` and `number` as in records; `size`, bytes of all items; `cost`,
-- what was done and not charged yet, see fold_cost. Returns that, with the items of `sent` behind it; nil where these
-- have no room, are many of a set, or the record is of another kind.
local function gather(rules, gathered, name, text, sent)
  local kind = sent.kind
  if kind ~= 'C' and (kind ~= 'U' or #sent.value > 128) then
    return nil
  end
  local group = gathered[name] or new_group(text, kind)
  if not group then
    return nil
  end
  local parts, number, size = { sent.value }, sent.number, #sent.value
  if kind == 'U' then
    parts = new_items(group, sent.value)
    number, size = #parts, #table.concat(parts)
  end
  if group.number + number > rules.max_items or group.size + size > rules.max_bytes then
    return nil
  end
  for _, part in ipairs(parts) do
    group.known[part], group.parts[#group.parts + 1] = kind == 'U', part
  end
  group.number, group.size, group.count = group.number + number, group.size + size, group.count + sent.count
  group.first, group.last = math.min(group.first, sent.last), math.max(group.last, sent.last)
  gathered[name], group.cost = group, group.cost + 8 * #sent.value
  return group
end

-- The record of a content of which items were gathered, as text; these are gathered no more. Nil for none.
local function ungather(gathered, name)
  local group = gathered[name]
  if not group then
    return nil
  end
  gathered[name] = nil
  local head = struct.pack('<c4ddddc1', '\0rm1', group.count, group.first, group.last, group.number, group.kind)
  return head .. string.sub(group.text, 38) .. table.concat(group.parts)
end

-- What it costs the server to move a value of a topic that merges, counted in bytes of bodies as `slot.budget` and
-- `slot.room` have them: each MiB of these is about a millisecond.
local function move_cost(size)
  return 4 * size
end

local function items_of(record)
  local most = #record.value / 4 -- whatever its head says
  return record.number > 0 and record.number < most and record.number or most
end

-- What it costs the server to fold two values of a topic that merges, counted as in move_cost: a value is read, put
-- together and written. A fold of sets also looks at each of their items, since it has to find those that both have.
local function fold_cost(older, newer)
  local cost = 8 * (#older.value + #newer.value)
  if newer.kind == 'U' or newer.kind == 'J' then
    cost = cost + 768 * (items_of(older) + items_of(newer))
  end
  return cost
end
