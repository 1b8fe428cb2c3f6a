-- An entry's id with its sequence number filled up with zeros: such ids sort as text as they do as numbers, so that
-- entries due at the same time keep the order of the stream. Redis reads them like any other.
local function padded_id(id)
  local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
  return ms .. '-' .. string.rep('0', 20 - #sequence) .. sequence
end
