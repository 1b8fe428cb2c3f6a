-- Buries what has outlived its time to live before it could be delivered: store -> dead, oldest first, up to `limit`.
-- Time topics: due more than ttl_ms ago; `slot.born` is nil. PRIORITY: sent so long ago, as `slot.born` tells, where
-- entries of what has left store meanwhile are dropped, too. What was delivered before is left to its retries. Returns
-- the rank `start` where the search goes on, 0 where ranks have moved, and whether more may have to die.
local function expire(slot, start, now_ms, ttl_ms, max_retries, limit, totals)
  local before = '(' .. string.format('%.0f', now_ms - ttl_ms)
  local old
  if slot.born then
    old = redis.call('ZRANGEBYSCORE', slot.born, '-inf', before, 'LIMIT', 0, limit)
  else
    old = redis.call('ZRANGEBYSCORE', slot.store, '(' .. max_retries, before, 'LIMIT', 0, limit)
  end
  local now = string.format('%.0f', now_ms)
  local reason = cjson.encode({
    first_ms = now, last_ms = now, type = 'Expired', attempts = 0,
    message = 'not delivered within its time to live of ' .. string.format('%.0f', ttl_ms) .. ' ms',
  })
  local expired = 0
  for _, content in ipairs(old) do
    local score = redis.call('ZSCORE', slot.store, content)
    if score and tonumber(score) > max_retries then
      if redis.call('ZADD', slot.dead, now, content) == 0 then
        count(totals, 'merged', 1)
      end
      redis.call('HSET', slot.reason, content, reason)
      local body = redis.call('HGET', slot.body, content)
      if body then
        redis.call('HSET', slot.dead_body, content, body)
      else
        redis.call('HDEL', slot.dead_body, content)
      end
      redis.call('ZREM', slot.store, content)
      forget_unused(slot, content)
      expired = expired + 1
    end
    if slot.born then
      redis.call('ZREM', slot.born, content)
    end
  end
  count(totals, 'ttl_expired', expired)
  return expired > 0 and 0 or start, #old == limit
end
