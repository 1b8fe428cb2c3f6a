-- One record of two: as if the sends of the older one and those of the newer one had been one message's. The kind says
-- how; where kinds differ, the newer value stands. See docs/internals/merging.md.
-- @include frames
-- @include only_trace

-- Whether the value of a record of kind `K`, `R` or `N` has no body.
local function is_bodiless(value)
  return value == '' or only_trace(value, 2)
end

local function fold(older, newer)
  local kind, number, value = newer.kind, newer.number, newer.value
  if kind == 'R' and is_bodiless(value) then
    if string.find('KRN', older.kind, 1, true) and not is_bodiless(older.value) then
      value = older.value
    end
  elseif older.kind ~= kind then
    value = newer.value
  elseif kind == 'S' then
    number = older.number + number
  elseif kind == 'X' then
    number = math.max(older.number, number)
  elseif kind == 'I' then
    number = math.min(older.number, number)
  elseif kind == 'K' then
    value = older.value
  elseif kind == 'N' and older.number > number then
    number, value = older.number, older.value
  elseif kind == 'C' then
    number, value = older.number + number, older.value .. value
  elseif kind == 'U' or kind == 'J' then
    local before = kind == 'U' and older.value or string.sub(value, 1, 8) .. string.sub(older.value, 9)
    value, number = union(before, older.number, value, frames_from(kind))
  end
  local first = older.first
  if first == 0 or (newer.first > 0 and newer.first < first) then
    first = newer.first
  end
  return {
    count = older.count + newer.count, first = first, last = math.max(older.last, newer.last), number = number,
    kind = kind, value = value,
  }
end
