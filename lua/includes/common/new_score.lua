-- The store score that a rescheduling asks for. `kind`: `after` (value = ms from now), `at` (value = epoch ms, ahead of
-- now), `priority` (value = the priority), on a topic with ages those of `scale` and `unit_ms`, else 1 and 1. Returns
-- the score, or nil and a refusal.
-- @include aged
local function new_score(kind, value, now_ms, scale, unit_ms)
  if kind == 'after' then
    return now_ms + value
  end
  if kind == 'at' and value <= now_ms then
    return nil, redis.error_reply(string.format('RMQ_PAST %.0f %.0f', now_ms, value))
  end
  return scale > 1 and aged(value, scale, unit_ms, now_ms) or value
end
