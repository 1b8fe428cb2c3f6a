-- The id after another one. Its numbers go up to 2^64 - 1, beyond what Lua counts: digit by digit.
-- @include whole
local function plus_one(number)
  local head, digit, nines = string.match(number, '^(%d-)([0-8]?)(9*)$')
  return head .. (digit == '' and '1' or whole(digit + 1)) .. string.rep('0', #nines)
end

local function id_after(id)
  local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
  if sequence == '18446744073709551615' then
    return plus_one(ms) .. '-0'
  end
  return ms .. '-' .. plus_one(sequence)
end
