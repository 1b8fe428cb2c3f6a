-- Notes in a table of totals that something happened `number` times.
local function count(totals, name, number)
  totals[name] = (totals[name] or 0) + number
end
