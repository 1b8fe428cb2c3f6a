-- Read when each of several slots, of one stream topic or several, next has something to do for a group.
--
-- KEYS[1..] slots  of each slot store, group, retry
-- ARGV[1..] groups  of each slot the name of the group; the lease, ms
-- Returns: { now_ms, next_due_ms of each slot ... }: 0 for never, at most now_ms for at once
-- Errors: none of its own
-- Complexity: O(slots x (groups + log N))
-- Notes: reads only. A slot whose group is gone is due: a claim makes it anew.
-- @include clock, redis, stream_groups, stream_claims

local now_ms = read_clock()

local function next_due(store, group, retry, name, lease_ms)
  local state = redis.call('HMGET', group, 'paused', 'scan_at', 'seen')
  if state[1] == '1' then
    return 0
  end
  local _, mine = groups_of(store, name)
  if not mine or redis.call('XRANGE', store, '(' .. mine[8], '+', 'COUNT', 1)[1] then
    return now_ms
  end
  local due = tonumber(redis.call('ZRANGE', retry, 0, 0, 'WITHSCORES')[2])
  due = due and math.max(now_ms, due) or 0
  local scan_at = tonumber(state[2])
  if scan_at and scan_at > now_ms + lease_ms then -- no lease ends later: the clock was ahead then
    scan_at = nil
  end
  local back = leases_to_restart(state[3], now_ms, lease_ms)
  if (not scan_at or back) and redis.call('XPENDING', store, name, '-', '+', 1)[1] then
    scan_at = now_ms
  end
  if scan_at then
    scan_at = math.max(now_ms, scan_at)
    due = due == 0 and scan_at or math.min(due, scan_at)
  end
  return due
end

local answers = { whole(now_ms) }
for i = 1, #KEYS, 3 do
  local at = (i - 1) / 3 * 2
  answers[#answers + 1] = whole(next_due(KEYS[i], KEYS[i + 1], KEYS[i + 2], ARGV[at + 1], tonumber(ARGV[at + 2])))
end
return answers
