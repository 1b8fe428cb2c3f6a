-- Hints to idle consumers that something is due earlier than they know. `lowest`: the earliest of what was stored (0
-- for at once); `first`: the lowest score before, or false. While few are in store, all of them may be in flight and
-- hide a new one: then hint, too. A lost hint delays, it loses nothing.
local function publish_wake(publish, wake, lowest, first, size, in_flight)
  if not first or lowest < tonumber(first) or size <= in_flight then
    redis.call(publish, wake, string.format('%.0f', lowest))
  end
end
