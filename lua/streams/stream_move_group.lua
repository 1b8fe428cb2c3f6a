-- Move a group to another position of one slot: what it reads next. What it has pending or dead stays as it is.
--
-- KEYS[1]  store  STREAM
-- KEYS[2]  meta   HASH  totals
-- KEYS[3]  group  HASH  epoch, ensemble, paused, state of the pass over the pending list, totals
-- KEYS[4]  wake   channel
-- ARGV[1]  group    its name
-- ARGV[2]  start    `new`: entries from now on; `all`: those that are there, too; or an id,
--   both of its numbers
-- ARGV[3]  through  '1': after that id; '0': with the entry that has it
-- ARGV[4]  publish  command for the wake hint: PUBLISH or SPUBLISH
-- Returns: the id after which it reads now; '' where the group is not
-- Errors: RMQ_DRIVEN driver, of a group that a Spark query moves; nothing was written
-- Complexity: O(groups + log N)
-- Notes: atomic; safe to repeat: what was read since is read again. An id that lies ahead means `new`. `again` is how
--   far the group had read before: see pass_over. The lag is exact where no more entries are left than one call counts.
-- @include totals, redis, stream_ids, stream_groups

local store, meta, group, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local name, start, through, publish = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4]

local size = redis.call('XLEN', store)
local state = redis.call('HMGET', group, 'driver', 'fresh', 'skipped', 'again')
local sent = redis.call('HMGET', meta, 'accepted', 'copied')
if state[1] then
  return redis.error_reply('RMQ_DRIVEN ' .. state[1])
end
local _, mine = groups_of(store, name)
replicate(group)
if not mine then
  return ''
end

local stood, id = mine[8], '0-0'
if start == 'new' then
  id = '$'
elseif start ~= 'all' then -- the entry before, which is there: an id made up might have none that comes next
  local last = redis.call('XREVRANGE', store, (through and '' or '(') .. start, '-', 'COUNT', 1)[1]
  id = last and last[1] or id
end
redis.call('XGROUP', 'SETID', store, name, id)
_, mine = groups_of(store, name)
id = mine[8]

local again = state[4] and is_before(stood, state[4]) and state[4] or stood
redis.call('HDEL', group, 'began', 'again')
if is_before(id, again) then
  redis.call('HSET', group, 'again', again)
end
local left, complete = size, start == 'all'
if not complete then
  left, complete = count_after(store, id)
end
if complete then
  local added = tonumber(sent[1] or 0) + tonumber(sent[2] or 0)
  local read = tonumber(state[2] or 0) + tonumber(state[3] or 0)
  redis.call('HSET', group, 'began', whole(added - left - read))
end
hint(publish, wake, '0')
return id
