-- A whole number as digits. Lua's own conversion keeps 14 of them and then turns to exponents.
local function whole(number)
  return string.format('%.0f', number)
end
