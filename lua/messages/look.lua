-- Read when each of several slots, of one topic or several, next has something to do.
--
-- KEYS[1..] slots  of each slot store, prepare, retry, meta
-- ARGV[1..] kinds  of each slot `high` for PRIORITY, else `low`; the lease, ms
-- Returns: { now_ms, next_due_ms of each slot ... }: 0 for never, at most now_ms for at once
-- Errors: none of its own
-- Complexity: O(slots x log N)
-- Notes: reads only. What is due may all be in flight; a claim finds out. A paused slot's backlog does not count.
-- @include clock, redis, scores

local now_ms = read_clock()
local answers = { whole(now_ms) }
for i = 1, #KEYS, 4 do
  local slot = { store = KEYS[i], prepare = KEYS[i + 1], retry = KEYS[i + 2] }
  local state = redis.call('HMGET', KEYS[i + 3], 'paused', 'stamp', 'lease')
  local at = (i + 1) / 2
  local clock = read_slot_clock(state[2], state[3], now_ms, tonumber(ARGV[at + 1]))
  answers[#answers + 1] = whole(next_due(slot, ARGV[at] == 'high', state[1] == '1' and 'none' or 'all', now_ms, clock))
end
return answers
