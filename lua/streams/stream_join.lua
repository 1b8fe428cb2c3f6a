-- Register a group on one slot at its first use; one that is there already stays where it is.
--
-- KEYS[1]  store  STREAM
-- KEYS[2]  meta   HASH  totals
-- KEYS[3]  group  HASH  epoch, ensemble, paused, state of the pass over the pending list, totals
-- ARGV[1]  group       its name
-- ARGV[2]  start       `new`: entries from now on, `all`: those that are there, too; or the id after which it begins
-- ARGV[3]  max_groups  most groups on one stream
-- Returns: '1' if it is new, '0' if it was there
-- Errors: RMQ_GROUPS number, when there are too many; OOM; nothing was written
-- Complexity: O(groups)
-- Notes: atomic; safe to repeat.
-- @include redis

local store, meta, group = KEYS[1], KEYS[2], KEYS[3]
local name, start, max_groups = ARGV[1], ARGV[2], tonumber(ARGV[3])

local size = redis.call('XLEN', store)
local sent = redis.call('HMGET', meta, 'accepted', 'copied')
redis.call('HLEN', group)
local groups = size > 0 and redis.call('XINFO', 'GROUPS', store) or redis.pcall('XINFO', 'GROUPS', store)
if groups.err then
  groups = {}
end
for _, found in ipairs(groups) do
  if found[2] == name then
    return '0'
  end
end
if #groups >= max_groups then
  return redis.error_reply('RMQ_GROUPS ' .. #groups)
end

local added = tonumber(sent[1] or 0) + tonumber(sent[2] or 0)
local id = start == 'new' and '$' or start == 'all' and '0' or start
redis.call('XGROUP', 'CREATE', store, name, id, 'MKSTREAM')
if start == 'new' or start == 'all' then
  redis.call('HSET', group, 'began', whole(start == 'new' and added or added - size))
end
return '1'
