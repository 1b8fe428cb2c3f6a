-- A whole number as digits. Lua's own conversion keeps 14 of them and then turns to exponents. The same few times are
-- asked for again and again within a call, so they are kept. A rank goes to Redis as such a text, too: it would turn a
-- number into 17 digits.
local digits = {}
local function whole(number)
  local text = digits[number]
  if not text then
    text = string.format('%.0f', number)
    digits[number] = text
  end
  return text
end
