-- Rescues what nobody holds any more: expired leases go back or die, due retries go to store; oldest first, up to
-- `limit` of each, and as many bytes, with the bodies that move along (see fold_cost), as `slot.budget` has left.
-- A failure tells which claims have ended one after the other, the last 8, newest first, and how many sends had merged
-- in this slot when the first did: a query of Spark may have committed what it claimed. Returns how many, and whether
-- more may be waiting.
-- @include count
-- @include whole
-- @include find_expired
local function sweep(slot, clock, now_ms, now_s, max_retries, limit, totals)
  local expired = slot.oldest and find_expired(slot, clock, now_ms, limit) or {}
  slot.quiet = slot.quiet and #expired == 0
  local number, budget, due, moved = #expired / 2, slot.budget, {}, 0
  if not slot.quiet then
    local upto = whole(now_s * 1000 + 999)
    due = redis.call('ZRANGEBYSCORE', slot.retry, '-inf', upto, 'WITHSCORES', 'LIMIT', 0, limit)
  end
  if #expired == 0 and #due == 0 then
    return 0, limit == 0
  end
  -- @include roll_back
  -- @include bury
  -- @include left_of
  -- @include failure_of
  -- @include record_failure
  -- @include end_committed
  local merged = #expired > 0 and redis.call('HGET', slot.meta, 'merged') or 0
  merged = whole(merged + (totals.merged or 0))
  for i = 1, #expired, 2 do
    local content, left = expired[i], left_of(tonumber(expired[i + 1]), max_retries)
    local attempts = max_retries - left + 1
    local failure, earlier = failure_of(slot, content, left == max_retries, now_ms, 'LeaseExpired',
      'delivery ' .. attempts .. ' was neither acked nor nacked within its lease', totals)
    budget.bytes = budget.bytes - #content
    if earlier.committed then
      end_committed(slot, content, totals)
    elseif left == 0 then
      budget.bytes = budget.bytes - bury(slot, content, failure, attempts, now_ms, totals)
    else
      failure.claim, failure.merged = expired[i + 1], merged
      if earlier.claim then
        failure.claim, failure.merged = string.sub(expired[i + 1] .. ' ' .. earlier.claim, 1, 135), earlier.merged
      end
      record_failure(slot, content, failure)
      budget.bytes = budget.bytes - roll_back(slot, content, left, 0, now_ms, totals)
    end
    if budget.bytes <= 0 then
      number = (i + 1) / 2
      break
    end
  end
  for i = 1, #due, 2 do
    if budget.bytes <= 0 then
      break
    end
    moved, budget.bytes = moved + 1, budget.bytes - #due[i]
    local left = math.max(1, left_of(tonumber(due[i + 1]), max_retries))
    -- without retries no score says that it was delivered: one of 1 would be a time in 1970
    local score = left > max_retries and slot.timed and now_ms or left
    local fresh = redis.call('ZADD', slot.store, 'NX', whole(score), due[i]) == 0
    if slot.held then
      -- @include fold_back
      budget.bytes = budget.bytes - fold_back(slot, due[i], fresh, now_ms)
    end
    if fresh then
      count(totals, 'merged', 1)
      keep_failure(slot, due[i])
    end
    redis.call('ZREM', slot.retry, due[i])
  end
  if number > 0 then
    count(totals, 'expired', number)
  end
  return number + moved, number < #expired / 2 or number == limit or moved < #due / 2 or moved == limit
end
