-- Buries what has outlived its time to live before it could be delivered: store -> dead, oldest first, up to `limit`,
-- and as many bytes of contents and bodies (see fold_cost) as `slot.budget` has left.
-- Time topics: due more than ttl_ms ago; `slot.born` is nil. PRIORITY: sent so long ago, as `slot.born` tells, where
-- entries of what has left store meanwhile are dropped, too. What was delivered before is left to its retries. Returns
-- the rank `start` where the search goes on, 0 where ranks have moved, and whether more may have to die.
-- @include forget_unused
-- @include count
local function any_of(values)
  for _, value in ipairs(values) do
    if value then
      return true
    end
  end
  return false
end

local function expire(slot, start, now_ms, ttl_ms, max_retries, limit, totals)
  local before = '(' .. string.format('%.0f', now_ms - ttl_ms)
  local old
  if slot.born then
    old = redis.call('ZRANGEBYSCORE', slot.born, '-inf', before, 'LIMIT', 0, limit)
    for _ = 1, 23 do -- what is not there any more holds up nothing, unless there is very much of it
      if #old < limit or #old == 0 or any_of(redis.call('ZMSCORE', slot.store, unpack(old))) then
        break
      end
      redis.call('ZREM', slot.born, unpack(old))
      old = redis.call('ZRANGEBYSCORE', slot.born, '-inf', before, 'LIMIT', 0, limit)
    end
  else
    old = redis.call('ZRANGEBYSCORE', slot.store, '(' .. max_retries, before, 'LIMIT', 0, limit)
  end
  local now = string.format('%.0f', now_ms)
  local reason = cjson.encode({
    first_ms = now, last_ms = now, type = 'Expired', attempts = 0,
    message = 'not delivered within its time to live of ' .. string.format('%.0f', ttl_ms) .. ' ms',
  })
  local expired, budget, seen = 0, slot.budget, 0
  for i, content in ipairs(old) do
    if budget.bytes <= 0 then
      break
    end
    seen, budget.bytes = i, budget.bytes - #content
    local score = redis.call('ZSCORE', slot.store, content)
    if score and tonumber(score) > max_retries then
      local again = redis.call('ZADD', slot.dead, now, content) == 0
      if again then
        count(totals, 'merged', 1)
      end
      redis.call('HSET', slot.reason, content, reason)
      local body = redis.call('HGET', slot.body, content)
      local cost = body and #body or 0
      if again and slot.held then
        -- @include fold_dead
        body, cost = fold_dead(slot, content, body)
      elseif slot.held then
        -- @include move_cost
        cost = move_cost(cost)
      end
      budget.bytes = budget.bytes - cost
      if body then
        redis.call('HSET', slot.dead_body, content, body)
      else
        redis.call('HDEL', slot.dead_body, content)
      end
      redis.call('ZREM', slot.store, content)
      forget_unused(slot, { content })
      expired = expired + 1
    end
    if slot.born then
      redis.call('ZREM', slot.born, content)
    end
  end
  count(totals, 'ttl_expired', expired)
  return expired > 0 and 0 or start, #old == limit or seen < #old
end
