-- A slot's table with keys that only some topics have, by the beginnings of their names: `born`, `held`, `body`.
local function with_keys(slot, keys)
  for _, key in ipairs(keys) do
    slot[string.match(key, '^%l+')] = key
  end
  return slot
end
