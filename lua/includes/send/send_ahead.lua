-- As `send_batch`, for fixed times, which have to lie ahead: `lowest` is the earliest. With `rules.each` those that
-- have passed are refused by themselves: their outcome is 4, and nothing comes of them. If none lies ahead, or without
-- `rules.each`, the batch is refused.
-- @include whole
-- @include send_batch

-- The messages whose times lie ahead, the earliest of their times, and by place in the batch their places now.
local function those_ahead(batch, now_ms)
  local messages, ahead, left, lowest, places = batch.args, {}, 0, math.huge, {}
  for i = 1, batch.number do
    local at = batch.at + 2 * i - 2
    local due_ms = tonumber(messages[at])
    if due_ms > now_ms then
      left = left + 1
      places[i] = left
      ahead[2 * left - 1], ahead[2 * left] = messages[at], messages[at + 1]
      lowest = math.min(lowest, due_ms)
    end
  end
  for i = batch.at + 2 * batch.number, batch.last, 2 do
    local place = places[tonumber(messages[i])]
    if place then
      ahead[#ahead + 1], ahead[#ahead + 2] = place, messages[i + 1]
    end
  end
  return { args = ahead, at = 1, last = #ahead, number = left }, lowest, places
end

local function send_ahead(slot, rules, batch, lowest, now_ms)
  if lowest > now_ms then
    return send_batch(slot, rules, batch, whole(lowest), now_ms)
  end
  local ahead, first, places = those_ahead(batch, now_ms)
  if ahead.number == 0 or not rules.each then
    return redis.error_reply('RMQ_PAST ' .. whole(now_ms) .. ' ' .. whole(lowest))
  end
  local detailed = rules.detailed
  rules.detailed = true
  local reply = send_batch(slot, rules, ahead, whole(first), now_ms)
  rules.detailed = detailed
  if not reply.err then
    local outcomes = {}
    for i = 1, batch.number do
      outcomes[i] = places[i] and string.sub(reply[2], places[i], places[i]) or '4'
    end
    reply[2] = table.concat(outcomes)
  end
  return reply
end
