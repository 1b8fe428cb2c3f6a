-- Turns the priorities of `number` messages (priority, content, ... from messages[at]) into scores with ages, and has
-- the slot's messages keep their own.
-- @include whole
-- @include aged
local function age_messages(slot, scale, unit_ms, now_ms, messages, at, number)
  local scores = {} -- a batch has few priorities
  for i = at, at + 2 * number - 1, 2 do
    local priority = messages[i]
    local score = scores[priority]
    if not score then
      score = whole(aged(tonumber(priority), scale, unit_ms, now_ms))
      scores[priority] = score
    end
    messages[i] = score
  end
  slot.scale = scale
end
