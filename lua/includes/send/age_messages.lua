-- Turns the priorities of a batch (see read_batch) into scores with ages, and has the slot's messages keep their own.
-- `made`: the age mark with which the sender has made scores of them, in the hope that it is still that one when they
-- arrive; nil if they are priorities. To make digits of numbers costs more than to store them: so where the mark is
-- right, nothing is left to do, and else it is taken out of each score.
-- @include whole
-- @include age_mark
local function age_messages(slot, scale, unit_ms, now_ms, batch, made)
  slot.scale = scale
  local mark = age_mark(scale, unit_ms, now_ms)
  if made == mark then
    return
  end
  local factor, plus = scale, scale - 1 - mark
  if made then
    factor, plus = 1, made - mark
  end
  local scores = {} -- a batch may have few priorities
  local messages = batch.args
  for i = batch.at, batch.at + 2 * batch.number - 1, 2 do
    local value = messages[i]
    local score = scores[value]
    if not score then
      score = whole(tonumber(value) * factor + plus)
      scores[value] = score
    end
    messages[i] = score
  end
end
