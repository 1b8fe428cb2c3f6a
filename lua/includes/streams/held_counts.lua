-- Which of up to 1,000 entries this holder has: id -> delivery count. One ranged reading finds them all where they come
-- in the order of the stream; the others are asked for one by one.
local function held_counts(slot, ids, holder)
  local counts = {}
  for _, row in ipairs(redis.call('XPENDING', slot.store, slot.group, ids[1], ids[#ids], #ids, holder)) do
    counts[row[1]] = row[4]
  end
  for _, id in ipairs(ids) do
    if not counts[id] then
      local row = redis.call('XPENDING', slot.store, slot.group, id, id, 1)[1]
      if row and row[2] == holder then
        counts[id] = row[4]
      end
    end
  end
  return counts
end
