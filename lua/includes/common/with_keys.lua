-- A slot's table with keys that only some topics have, by the beginnings of their names: `born`, `held`, `body`. In a
-- cluster one more stands behind them, `wake`, which never exists: see `absent_key` in rmq/_transport/cluster_map.py.
local function with_keys(slot, keys)
  for _, key in ipairs(keys) do
    slot[string.match(key, '^%l+')] = key
  end
  return slot
end
