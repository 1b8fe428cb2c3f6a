-- What a chunk still holds: in prepare with exactly the claim score that the chunk gave it. Items are flat: content,
-- store score, retries left after this delivery. Returns the held items, and their contents.
local function held_in_chunk(slot, chunk)
  local contents = {}
  for i = 1, #chunk.items, 3 do
    contents[#contents + 1] = chunk.items[i]
  end
  local scores = #contents > 0 and redis.call('ZMSCORE', slot.prepare, unpack(contents)) or {}
  local items, names = {}, {}
  for n = 1, #contents do
    local at = 3 * n - 2
    if scores[n] == string.format('%.0f', chunk.second * 1000 + chunk.items[at + 2]) then
      items[#items + 1] = chunk.items[at]
      items[#items + 1] = chunk.items[at + 1]
      items[#items + 1] = chunk.items[at + 2]
      names[#names + 1] = chunk.items[at]
    end
  end
  return items, names
end
