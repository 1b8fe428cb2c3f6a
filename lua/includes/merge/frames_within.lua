-- The frames of a value from the one at `at` on that fit into a number of items and bytes: where the next one would
-- begin, and how many they are.
local function frames_within(value, at, most_items, most_bytes)
  local number, stop = 0, at + most_bytes - 1
  while at + 3 <= #value and number < most_items do
    local last = frame_end(value, at)
    if last > stop then
      break
    end
    at, number = last + 1, number + 1
  end
  return at, number
end
