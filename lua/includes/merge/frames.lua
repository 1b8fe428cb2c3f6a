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
