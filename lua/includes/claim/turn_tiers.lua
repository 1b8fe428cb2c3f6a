-- Turns each tier of a page of contents and scores (alternating): its messages follow one another as before, but begin
-- at the place that the stamp says. Returns the number of the message with which the last tier begins, which is left
-- as it is where it is `open`: it has more messages than the page.
-- @include place_of
local function turn_tier(page, first, size, place)
  local front, at = {}, 2 * first - 1
  for i = 0, place - 1 do
    front[i] = page[at + 2 * i]
  end
  for i = at, at + 2 * (size - place - 1), 2 do
    page[i] = page[i + 2 * place]
  end
  at = at + 2 * (size - place)
  for i = 0, place - 1 do
    page[at + 2 * i] = front[i]
  end
end

local function turn_tiers(page, view, open)
  local first, score, last = 1, page[2], #page
  for i = 4, last + 2, 2 do
    if page[i] ~= score then
      local size = i / 2 - first
      local place = size > 1 and not (open and i > last) and place_of(view, size) or 0
      if place > 0 then
        turn_tier(page, first, size, place)
      end
      if i <= last then
        first, score = i / 2, page[i]
      end
    end
  end
  return first
end
