-- Puts the items that a call sends to one content together, so that what is in store is copied once, and not with each
-- of them. `gathered`: of each content, its record as far as it is known: `text`, as it is in store, and `parts`, the
-- items behind it; `known`, these items of a set, and `looks`, how many were searched for in `text`: from the ninth on
-- all of its items are known; `first`, `last`, `count` and `number` as in records; `size`, bytes of all items; `cost`,
-- what was done and not charged yet, see fold_cost. Returns that, with the items of `sent` behind it; nil where these
-- have no room, are many of a set, or the record is of another kind.
-- @include records
-- @include frames
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
