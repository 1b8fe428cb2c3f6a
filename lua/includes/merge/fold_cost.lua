-- What it costs the server to move a value of a topic that merges, and to fold two of them, counted in bytes of bodies
-- as `slot.budget` and `slot.room` have them: each MiB of these is about a millisecond. A value is read, put together
-- and written; a fold of sets also looks at each of their items, since it has to find those that both have.
local function move_cost(size)
  return 4 * size
end

local function items_of(record)
  local most = #record.value / 4 -- whatever its head says
  return record.number > 0 and record.number < most and record.number or most
end

local function fold_cost(older, newer)
  local cost = 8 * (#older.value + #newer.value)
  if newer.kind == 'U' or newer.kind == 'J' then
    cost = cost + 768 * (items_of(older) + items_of(newer))
  end
  return cost
end
