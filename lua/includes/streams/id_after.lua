-- The id after another one.
-- @include ids_in_order
local function id_after(id)
  local ms, sequence = split_id(id)
  return string.format('%.0f-%.0f', ms, sequence + 1)
end
