-- Returns `number` messages as score, content, ..., then indices and bodies, and the place of the first one. ARGV has
-- them so from `at` on if it has as many `values`; if it has one, for all of them, that is followed by the contents
-- alone, and `score` is what they get.
local function paired(at, number, values, score)
  if values == number then
    return ARGV, at
  end
  local messages, place = {}, 1
  for i = at + 1, at + number do
    messages[place] = score
    messages[place + 1] = ARGV[i]
    place = place + 2
  end
  for i = at + number + 1, #ARGV do
    messages[place] = ARGV[i]
    place = place + 1
  end
  return messages, 1
end
