-- Turns each tier of a page of contents and scores (alternating): its messages follow one another as before, but begin
-- at the place that the stamp says. Returns the number of the message with which the last tier begins, which is left
-- as it is where it is `open`: it has more messages than the page.
-- @include place_of
local function turn_tier(page, first, size, place)
  local turned = {}
  for i = 0, size - 1 do
    turned[i + 1] = page[2 * (first + (i + place) % size) - 1]
  end
  for i = 1, size do
    page[2 * (first + i) - 3] = turned[i]
  end
end

local function turn_tiers(page, stamp, open)
  local first, last = 1, #page / 2
  local score = page[2]
  for i = 2, last do
    if page[2 * i] ~= score then
      if i - first > 1 then
        turn_tier(page, first, i - first, place_of(stamp, i - first))
      end
      first, score = i, page[2 * i]
    end
  end
  if last > first and not open then
    turn_tier(page, first, last - first + 1, place_of(stamp, last - first + 1))
  end
  return first
end
