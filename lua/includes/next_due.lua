-- When a slot next has something to do, epoch ms, 0 for never: a message due, a retry due, a lease running out.
-- `backlog` says which messages in store count: `all`, `later` (all that are due now are in flight) or `none`.
local function next_due(slot, highest_first, backlog, now_ms, lease_s)
  local soonest = 0
  local function consider(time)
    if time and (soonest == 0 or time < soonest) then
      soonest = time
    end
  end
  if backlog ~= 'none' and not highest_first then
    local from = backlog == 'later' and '(' .. string.format('%.0f', now_ms) or '-inf'
    local first = redis.call('ZRANGEBYSCORE', slot.store, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    consider(tonumber(first[2]))
  elseif backlog == 'all' and redis.call('ZCARD', slot.store) > 0 then
    return now_ms
  end
  local retry = not slot.quiet and redis.call('ZRANGE', slot.retry, 0, 0, 'WITHSCORES')[2]
  local claim = slot.claimed
  if not slot.unheld then
    claim = redis.call('ZRANGE', slot.prepare, 0, 0, 'WITHSCORES')[2]
  end
  consider(retry and math.floor(tonumber(retry) / 1000) * 1000)
  consider(claim and (math.floor(tonumber(claim) / 1000) + lease_s + 1) * 1000)
  return soonest
end
