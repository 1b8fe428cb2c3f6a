-- Keeps the dead within their bounds: at most max_age_ms old, at most max_count of them; oldest first, up to 250
-- a call, 100 where they have bodies.
-- @include count
local function trim_dead(slot, now_ms, max_age_ms, max_count, totals)
  local before = '(' .. string.format('%.0f', now_ms - max_age_ms)
  local doomed = redis.call('ZRANGEBYSCORE', slot.dead, '-inf', before, 'LIMIT', 0, 250)
  local excess = math.min(redis.call('ZCARD', slot.dead) - max_count, 250)
  if excess > #doomed then
    doomed = redis.call('ZRANGE', slot.dead, 0, excess - 1)
  end
  if #doomed > 100 and redis.call('HLEN', slot.dead_body) > 0 then
    doomed = { unpack(doomed, 1, 100) } -- to free large ones takes its time
  end
  if #doomed > 0 then
    count(totals, 'trimmed', redis.call('ZREM', slot.dead, unpack(doomed)))
    redis.call('HDEL', slot.reason, unpack(doomed))
    redis.call('HDEL', slot.dead_body, unpack(doomed))
  end
end
