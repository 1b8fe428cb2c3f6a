-- What it costs the server to fold two values of a topic that merges, counted as in move_cost: a value is read, put
-- together and written. A fold of sets also looks at each of their items, since it has to find those that both have.
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
