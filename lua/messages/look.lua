-- Read when each of several slots of a topic next has something to do.
--
-- KEYS[1..] per slot: store, prepare, retry, meta
-- ARGV[1]  order    `high` for PRIORITY, else `low`
-- ARGV[2]  lease_s  seconds
-- Returns: { now_ms, next_due_ms of each slot ... }: 0 for never, at most now_ms for at once
-- Errors: none of its own
-- Complexity: O(slots x log N)
-- Notes: reads only. What is due may all be in flight; a claim finds out. A paused slot's backlog does not count.
-- @include whole
-- @include read_clock
-- @include next_due

local order, lease_s = ARGV[1], tonumber(ARGV[2])

local now_ms = read_clock()
local answers = { whole(now_ms) }
for i = 1, #KEYS, 4 do
  local slot = { store = KEYS[i], prepare = KEYS[i + 1], retry = KEYS[i + 2] }
  local backlog = redis.call('HGET', KEYS[i + 3], 'paused') == '1' and 'none' or 'all'
  answers[#answers + 1] = whole(next_due(slot, order == 'high', backlog, now_ms, lease_s))
end
return answers
