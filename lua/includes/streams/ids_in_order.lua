-- Ids of entries are two numbers and not one: which of two comes first.
local function split_id(id)
  local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(sequence)
end

local function before(a, b)
  local a_ms, a_sequence = split_id(a)
  local b_ms, b_sequence = split_id(b)
  return a_ms < b_ms or (a_ms == b_ms and a_sequence < b_sequence)
end
