-- Read the sizes, the next due time and the totals of each of several slots, of one topic or several, at one instant.
--
-- KEYS[1..] slots  of each slot store, prepare, retry, dead, meta
-- ARGV[1..] kinds  of each slot `high` for PRIORITY, else `low`; the lease, ms; the scale of the ages in the scores, 1
--   for none. Then the names of the totals to read
-- Returns: per slot { now_ms, backlog, due now, in flight, waiting, dead, lowest store score or '', next_due_ms, epoch
--   or '0', '1' if paused else '0', a total per name or nil, with ages the scores of the next message and of the oldest
--   one of the lowest priority }
-- Errors: none of its own
-- Complexity: O(slots x log N)
-- Notes: reads only.
-- @include clock, redis, scores

local now_ms = read_clock()
local totals = { unpack(ARGV, #KEYS / 5 * 3 + 1) }

-- Scores in store of messages that may have waited longest: the next one, and the oldest one of the lowest priority.
local function longest_waiting(store, scale)
  local found = redis.call('ZREVRANGE', store, 0, 0, 'WITHSCORES')
  local lowest = tonumber(redis.call('ZRANGEBYSCORE', store, whole(scale), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
  if not lowest then
    return {}
  end
  local last = whole(lowest - lowest % scale + scale - 1)
  local oldest = redis.call('ZREVRANGEBYSCORE', store, last, whole(lowest), 'WITHSCORES', 'LIMIT', 0, 1)
  return { found[2], oldest[2] }
end

local answers = {}
for i = 1, #KEYS, 5 do
  local slot = { store = KEYS[i], prepare = KEYS[i + 1], retry = KEYS[i + 2] }
  local dead, meta, at = KEYS[i + 3], KEYS[i + 4], #answers * 3 + 1
  local highest_first, scale = ARGV[at] == 'high', tonumber(ARGV[at + 2])
  local backlog = redis.call('ZCARD', slot.store)
  local state = redis.call('HMGET', meta, 'epoch', 'paused', 'stamp', 'lease')
  local clock = read_slot_clock(state[3], state[4], now_ms, tonumber(ARGV[at + 1]))
  answers[#answers + 1] = {
    whole(now_ms),
    whole(backlog),
    whole(highest_first and backlog or redis.call('ZCOUNT', slot.store, '-inf', whole(now_ms))),
    whole(redis.call('ZCARD', slot.prepare)),
    whole(redis.call('ZCARD', slot.retry)),
    whole(redis.call('ZCARD', dead)),
    redis.call('ZRANGE', slot.store, 0, 0, 'WITHSCORES')[2] or '',
    whole(next_due(slot, highest_first, 'all', now_ms, clock)),
    state[1] or '0',
    state[2] == '1' and '1' or '0',
    redis.call('HMGET', meta, unpack(totals)),
    scale > 1 and backlog > 0 and longest_waiting(slot.store, scale) or {},
  }
end
return answers
