-- What the three sends share, from the backlog's bound to the totals. Scores in ARGV are absolute by now. `lowest`:
-- the earliest due time of the batch, 0 for at once. Returns the reply. A due one at the head of the store may be
-- hidden by its twin in flight: then the first later one is what consumers wait for.
local function send_batch(slot, publish, max_backlog, detailed, number, at, keep_first, lowest, now_ms)
  local size, in_flight = redis.call('ZCARD', slot.store), redis.call('ZCARD', slot.prepare)
  local had_bodies = redis.call('HLEN', slot.body) > 0
  redis.call('HEXISTS', slot.meta, 'accepted')
  local first = redis.call('ZRANGE', slot.store, 0, 0, 'WITHSCORES')[2]
  if lowest > 0 and in_flight > 0 and first and tonumber(first) <= now_ms then
    local from = '(' .. string.format('%.0f', now_ms)
    first = redis.call('ZRANGEBYSCORE', slot.store, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
  local refusal = check_backlog(slot.store, size, max_backlog, at, number)
  if refusal then
    return refusal
  end
  local new
  local outcomes = ''
  if detailed or had_bodies or #ARGV >= at + 2 * number then
    new, outcomes = store_each(slot.store, slot.body, keep_first, at, number)
  else
    new = store_batch(slot.store, keep_first, at, number)
  end
  write_totals(slot.meta, { accepted = number, merged = number - new })
  if new > 0 or not keep_first then
    publish_wake(publish, slot.wake, lowest, first, size, in_flight)
  end
  return { string.format('%.0f', new), outcomes }
end
