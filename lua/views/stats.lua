-- Read one slot's sizes, next due time and totals at one instant.
--
-- KEYS[1]  store    ZSET  content -> score
-- KEYS[2]  prepare  ZSET  content -> claim score
-- KEYS[3]  retry    ZSET  content -> retry score
-- KEYS[4]  dead     ZSET  content -> time of death, ms
-- KEYS[5]  meta     HASH  epoch, ensemble, paused, stamp, lease, totals
-- ARGV[1]  order     `high` for PRIORITY, else `low`
-- ARGV[2]  lease_ms  ms
-- ARGV[3..] totals  names of the totals to read
-- Returns: { now_ms, backlog, due now, in flight, waiting, dead, lowest store score or '', next_due_ms, epoch or '0',
--   '1' if paused else '0', a total per name or nil }
-- Errors: none of its own
-- Complexity: O(log N)
-- Notes: reads only.
-- @include clock, redis, scores

local slot = { store = KEYS[1], prepare = KEYS[2], retry = KEYS[3], dead = KEYS[4], meta = KEYS[5] }
local order, lease_ms = ARGV[1], tonumber(ARGV[2])

local now_ms = read_clock()
local highest_first = order == 'high'
local backlog = redis.call('ZCARD', slot.store)
local state = redis.call('HMGET', slot.meta, 'epoch', 'paused', 'stamp', 'lease')
local clock = read_slot_clock(state[3], state[4], now_ms, lease_ms)
return {
  whole(now_ms),
  whole(backlog),
  whole(highest_first and backlog or redis.call('ZCOUNT', slot.store, '-inf', whole(now_ms))),
  whole(redis.call('ZCARD', slot.prepare)),
  whole(redis.call('ZCARD', slot.retry)),
  whole(redis.call('ZCARD', slot.dead)),
  redis.call('ZRANGE', slot.store, 0, 0, 'WITHSCORES')[2] or '',
  whole(next_due(slot, highest_first, 'all', now_ms, clock)),
  state[1] or '0',
  state[2] == '1' and '1' or '0',
  redis.call('HMGET', slot.meta, unpack(ARGV, 3)),
}
