-- Read the next of one slot's dead of whom nobody was told yet under a name, and note up to where that has been done.
--
-- KEYS[1]  dead       ZSET  content -> time of death, ms
-- KEYS[2]  reason     HASH  content -> why it died, JSON
-- KEYS[3]  dead_body  HASH  content -> body of the dead
-- KEYS[4]  meta       HASH  epoch, ensemble, paused, stamp, lease, totals, told
-- ARGV[1]  name     under which is told; each name is told of all
-- ARGV[2]  holder   identity of the caller: only one at a time tells
-- ARGV[3]  hold_ms  for how long nobody else does, from now on; 0 ends the turn
-- ARGV[4]  since    the caller has told of all who died before this time, ms; 0 for what is noted
-- ARGV[5]  after    of those who died in that ms the caller has told of all up to this content; empty for none
-- ARGV[6]  limit    most messages, 0 to 1,000; fewer are read where they have more than 4 MiB
-- Returns: { end of what may be told, ms, or '0' where somebody else has the turn, { content, time of death, ... },
--   { reason or nil, ... }, { body or nil, ... } }; who died at that end or later is not to be told yet
-- Errors: none of its own
-- Complexity: O(log N + n)
-- Notes: safe to repeat. What is purged or redriven before it is read here is not told.
-- @include clock, fence, redis, dead

local dead, reason, dead_body, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local turn = {
  name = ARGV[1], holder = ARGV[2], hold_ms = tonumber(ARGV[3]), since = tonumber(ARGV[4]), after = ARGV[5],
}
local limit = tonumber(ARGV[6])

check_types({ dead }, { reason, dead_body, meta })
local ripe, start = turn_to_tell({ dead = dead, state = meta }, turn, (read_clock()))
if not ripe then
  return { '0', {}, {}, {} }
end
local page, contents, bodies = read_within('ZRANGE', dead, dead_body, start, limit)
return { whole(ripe), page, #contents > 0 and redis.call('HMGET', reason, unpack(contents)) or {}, bodies }
