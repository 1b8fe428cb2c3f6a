-- Ids of entries are two numbers and not one: which of two comes first. The numbers go up to 2^64 - 1, beyond what Lua
-- counts, so that they are compared as digits.
local function split_id(id)
  return string.match(id, '^0*(%d+)%-0*(%d+)$')
end

local function less(a, b)
  return #a < #b or #a == #b and a < b
end

local function before(a, b)
  local a_ms, a_sequence = split_id(a)
  local b_ms, b_sequence = split_id(b)
  return less(a_ms, b_ms) or a_ms == b_ms and less(a_sequence, b_sequence)
end
