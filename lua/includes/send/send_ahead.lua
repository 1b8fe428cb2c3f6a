-- As `send_batch`, for fixed times (score, content, ... from messages[at]), which have to lie ahead: `lowest` is the
-- earliest. With `each` those that have passed are refused by themselves: their outcome is 4, and nothing comes of
-- them. If none lies ahead, or without `each`, the batch is refused.
-- @include whole
-- @include send_batch

-- The messages whose times lie ahead, from 1 on, how many they are, the earliest of their times, and by place among all
-- their places now.
local function those_ahead(messages, at, number, now_ms)
  local ahead, left, lowest, places = {}, 0, math.huge, {}
  for i = 1, number do
    local due_ms = tonumber(messages[at + 2 * i - 2])
    if due_ms > now_ms then
      left = left + 1
      places[i] = left
      ahead[2 * left - 1], ahead[2 * left] = messages[at + 2 * i - 2], messages[at + 2 * i - 1]
      lowest = math.min(lowest, due_ms)
    end
  end
  for i = at + 2 * number, #messages, 2 do
    local place = places[tonumber(messages[i])]
    if place then
      ahead[#ahead + 1], ahead[#ahead + 2] = place, messages[i + 1]
    end
  end
  return ahead, left, lowest, places
end

local function send_ahead(slot, publish, max_backlog, detailed, number, messages, at, lowest, now_ms, each)
  if lowest > now_ms then
    return send_batch(slot, publish, max_backlog, detailed, number, messages, at, false, whole(lowest), now_ms)
  end
  local ahead, left, first, places = those_ahead(messages, at, number, now_ms)
  if left == 0 or not each then
    return redis.error_reply('RMQ_PAST ' .. whole(now_ms) .. ' ' .. whole(lowest))
  end
  local reply = send_batch(slot, publish, max_backlog, true, left, ahead, 1, false, whole(first), now_ms)
  if not reply.err then
    local outcomes = {}
    for i = 1, number do
      outcomes[i] = places[i] and string.sub(reply[2], places[i], places[i]) or '4'
    end
    reply[2] = table.concat(outcomes)
  end
  return reply
end
