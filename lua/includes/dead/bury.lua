-- A claimed message has used up its retries, or was rejected: prepare -> dead, with its last `failure` as the reason,
-- and its body. Beside a fresh copy in store nothing is left to bury: it is counted, and the fresh copy has all its
-- retries. Where the topic merges, it has a value of its own, and dies with that. Returns the bytes of the body that it
-- has moved, or what its value has cost (see fold_cost).
-- @include count
-- @include record_failure
local function bury(slot, content, failure, attempts, now_ms, totals)
  if not slot.held and redis.call('ZSCORE', slot.store, content) then
    count(totals, 'exhausted', 1)
    count(totals, 'merged', 1)
    record_failure(slot, content, failure)
    redis.call('ZREM', slot.prepare, content)
    return 0
  end
  local again = redis.call('ZADD', slot.dead, string.format('%.0f', now_ms), content) == 0
  if again then
    count(totals, 'merged', 1)
  end
  count(totals, 'buried', 1)
  failure.attempts = attempts
  redis.call('HSET', slot.reason, content, cjson.encode(failure))
  local bodies = slot.held or slot.body
  local body = redis.call('HGET', bodies, content)
  local cost = body and #body or 0
  if again and slot.held then
    -- @include fold_dead
    body, cost = fold_dead(slot, content, body)
  elseif slot.held then
    -- @include move_cost
    cost = move_cost(cost)
  end
  if body then
    redis.call('HSET', slot.dead_body, content, body)
    redis.call('HDEL', bodies, content)
  else
    redis.call('HDEL', slot.dead_body, content)
  end
  redis.call('HDEL', slot.error, content)
  redis.call('ZREM', slot.prepare, content)
  return cost
end
