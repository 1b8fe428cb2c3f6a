-- Rescues what nobody holds any more: expired leases go back or die, due retries go to store; oldest first, up to
-- `limit` of each. `slot.oldest` is the first claim score in prepare, false without; nil afterwards where it may be
-- another one now. Returns how many, and whether more may be waiting.
local function sweep(slot, now_ms, now_s, lease_s, max_retries, limit, totals)
  local from = (now_s - lease_s) * 1000
  local expired = {}
  if slot.oldest and slot.oldest < from then
    expired = redis.call('ZRANGEBYSCORE', slot.prepare, '-inf', '(' .. whole(from), 'WITHSCORES', 'LIMIT', 0, limit)
    slot.oldest = nil
  end
  slot.quiet = slot.quiet and #expired == 0
  for i = 1, #expired, 2 do
    local content, left = expired[i], tonumber(expired[i + 1]) % 1000
    local attempts = max_retries - left + 1
    record_failure(slot, content, left == max_retries, now_ms, 'LeaseExpired',
      'delivery ' .. attempts .. ' was neither acked nor nacked within its lease')
    if left == 0 then
      bury(slot, content, attempts, now_ms, totals)
    else
      roll_back(slot, content, left, 0, totals)
    end
  end
  local due = {}
  if not slot.quiet then
    local upto = whole(now_s * 1000 + 999)
    due = redis.call('ZRANGEBYSCORE', slot.retry, '-inf', upto, 'WITHSCORES', 'LIMIT', 0, limit)
  end
  for i = 1, #due, 2 do
    if redis.call('ZADD', slot.store, 'NX', tonumber(due[i + 1]) % 1000, due[i]) == 0 then
      count(totals, 'merged', 1)
      redis.call('HDEL', slot.error, due[i])
    end
    redis.call('ZREM', slot.retry, due[i])
  end
  if #expired > 0 then
    count(totals, 'expired', #expired / 2)
  end
  return (#expired + #due) / 2, #expired == 2 * limit or #due == 2 * limit
end
