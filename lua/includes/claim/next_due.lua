-- When a slot next has something to do, epoch ms, 0 for never: a message due, a retry due, a lease running out.
-- `backlog` says which messages in store count: `all`, `later` (all that are due now are in flight) or `none`. What
-- the caller knows stands in `slot`: `upcoming`, `first`, `oldest` and `claimed`.
-- @include whole
-- @include lease_end
local function next_due(slot, highest_first, backlog, now_ms, clock)
  local soonest = nil
  if backlog == 'later' and slot.upcoming ~= nil then
    soonest = not highest_first and slot.upcoming or nil
  elseif backlog == 'all' and slot.first ~= nil then
    if slot.first and highest_first then
      return now_ms
    end
    soonest = slot.first or nil
  elseif backlog ~= 'none' and not highest_first then
    local from = backlog == 'later' and '(' .. whole(now_ms) or '-inf'
    soonest = tonumber(redis.call('ZRANGEBYSCORE', slot.store, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
  elseif backlog == 'all' and redis.call('ZCARD', slot.store) > 0 then
    return now_ms
  end
  local retry = not slot.quiet and redis.call('ZRANGE', slot.retry, 0, 0, 'WITHSCORES')[2]
  if retry then
    local due = math.floor(tonumber(retry) / 1000) * 1000
    soonest = math.min(due, soonest or due)
  end
  local claim = slot.oldest or slot.claimed
  if slot.oldest == nil then
    claim = tonumber(redis.call('ZRANGE', slot.prepare, 0, 0, 'WITHSCORES')[2])
  end
  if claim then -- a clock that was set back stands still until a claim notes it
    local ends = clock.changed and now_ms or lease_end(tonumber(claim), clock, now_ms)
    soonest = math.min(ends, soonest or ends)
  end
  return soonest and math.max(1, math.min(soonest, 9007199254740991)) or 0
end
