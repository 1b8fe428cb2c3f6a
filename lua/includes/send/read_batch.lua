-- Reads `number` messages of ARGV, as all that sends takes them: `args` has from `at` on score and content of each,
-- then index (from 1) and body of those that have one, up to `last`. ARGV has them so where each has a value (`values`
-- is their number), else one value for all, and then the contents alone. With `now_ms` the values are ms from then.
-- @include whole
local function read_batch(at, last, number, values, now_ms)
  local value = ARGV[at]
  local score = now_ms and whole(now_ms + value) or value
  if values == '1' and number > 1 then
    local args, place = {}, 1
    for i = at + 1, at + number do
      args[place], args[place + 1] = score, ARGV[i]
      place = place + 2
    end
    for i = at + number + 1, last do
      args[place] = ARGV[i]
      place = place + 1
    end
    return { args = args, at = 1, last = place - 1, number = number }
  end
  if now_ms then
    for i = at, at + 2 * number - 1, 2 do
      if ARGV[i] ~= value then
        value = ARGV[i]
        score = whole(now_ms + value)
      end
      ARGV[i] = score
    end
  end
  return { args = ARGV, at = at, last = last, number = number }
end
