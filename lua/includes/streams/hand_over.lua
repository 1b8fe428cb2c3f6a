-- Adds an entry to what a claim hands over: `out` has `flat`, entries in one flat table; `ids` and `contents`, plain
-- entries behind these (see read_plain); `tail`, those behind them, flat again; `number` of entries; `left`, bytes
-- still free; `largest`, bytes of the largest entry. Beyond `left` nothing more is taken: see is_full.
local function hand_over(out, entry, deliveries)
  local flat, values, bytes = out.ids[1] and out.tail or out.flat, entry[2], 0
  local size = #flat
  flat[size + 1], flat[size + 2], flat[size + 3] = entry[1], deliveries, #values
  for j = 1, #values do
    bytes = bytes + #values[j]
    flat[size + 3 + j] = values[j]
  end
  out.number, out.left = out.number + 1, out.left - bytes
  if bytes > out.largest then
    out.largest = bytes
  end
end

local function is_full(out)
  return out.left <= 0 and out.number > 0
end
