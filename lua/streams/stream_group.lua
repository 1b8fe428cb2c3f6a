-- Read what one group has done and has left to do in one slot.
--
-- KEYS[1]  store  STREAM
-- KEYS[2]  meta   HASH  totals
-- KEYS[3]  group  HASH  epoch, ensemble, paused, state of the pass over the pending list, totals
-- KEYS[4]  retry  ZSET  padded id -> due ms
-- KEYS[5]  dead   ZSET  id -> time of death, ms
-- ARGV[1]  group  its name
-- ARGV[2]  lease  length of a lease, ms
-- ARGV[3..] totals  names of the totals to read
-- Returns: { last id read or '', pending, waiting, dead, lag or '', epoch or '0', '1' if paused else '0', oldest
--   pending id or '', how long the first overdue entry is overdue, ms, a total per name or nil }; the last id is ''
--   where the group is not
-- Errors: none of its own
-- Complexity: O(groups + log N)
-- Notes: reads only. The lag is Redis' own where it knows it (7.0), else what was sent less what was read; of a group
--   that began at an id, what one call may count: at most 1,000 entries, or 1 MiB. It is '' only without the group.
--   Of the leases those of the 100 oldest pending entries are looked at.
-- @include clock, redis, stream_groups

local store, meta, group, retry, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local name, lease_ms = ARGV[1], tonumber(ARGV[2])

local _, mine = groups_of(store, name)
local state = redis.call('HMGET', group, 'epoch', 'paused', 'began', 'fresh', 'skipped')
local sent = redis.call('HMGET', meta, 'accepted', 'copied')
local lag, oldest, overdue_ms = '', '', 0
if mine then
  local pending = redis.call('XPENDING', store, name, '-', '+', 100)
  oldest = pending[1] and pending[1][1] or ''
  for _, row in ipairs(pending) do
    overdue_ms = math.max(overdue_ms, row[2] == '(waiting)' and 0 or row[3] - lease_ms)
  end
  overdue_ms = math.max(overdue_ms, read_clock() - (redis.call('ZRANGE', retry, 0, 0, 'WITHSCORES')[2] or 9e15))
  if not redis.call('XRANGE', store, '(' .. mine[8], '+', 'COUNT', 1)[1] then
    lag = '0'
  elseif mine[11] == 'lag' and mine[12] then
    lag = whole(mine[12])
  elseif state[3] then
    local read = tonumber(state[3]) + tonumber(state[4] or 0) + tonumber(state[5] or 0)
    local left = tonumber(sent[1] or 0) + tonumber(sent[2] or 0) - read
    lag = whole(math.max(1, math.min(left, redis.call('XLEN', store))))
  else
    lag = whole((count_after(store, mine[8])))
  end
end
return {
  mine and mine[8] or '',
  whole(mine and mine[6] or 0),
  whole(redis.call('ZCARD', retry)),
  whole(redis.call('ZCARD', dead)),
  lag,
  state[1] or '0',
  state[2] == '1' and '1' or '0',
  oldest, whole(overdue_ms),
  redis.call('HMGET', group, unpack(ARGV, 3)),
}
