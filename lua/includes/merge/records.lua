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
