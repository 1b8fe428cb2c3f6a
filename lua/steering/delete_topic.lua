-- Drop all that one slot of a topic holds, and put a tombstone in the place of its store, or take the tombstone away.
--
-- KEYS[1]  store  ZSET, or STREAM of a stream topic; of a deleted topic STRING: the tombstone
-- KEYS[2]  meta   HASH  epoch, ensemble, token_base, stamp, paused, totals; `cleared`: latest deletion cleared
-- KEYS[3..] others  all other keys of the slot that are to go, and those of the groups of its stream
-- ARGV[1]  deletion  its identity, no blanks in it; as text it is above those of earlier deletions
-- ARGV[2]  step      `ask`: drop only what is empty; `drop`: drop; `clear`: take away the tombstone of this deletion
--   and of earlier ones (which from then on do nothing here any more)
-- ARGV[3]  groups    of a stream topic the number of groups whose keys are among the others; else empty
-- Returns: { outcome, number of messages, or of entries and dead ones of groups: what was dropped, or what is there }.
--   Outcomes: `buried`: the tombstone is there; `kept`: the slot holds something; `groups`: the stream has more groups
--   than were named; `cleared`: this deletion is over here: cleared, or a later one has begun
-- Errors: none of its own
-- Complexity: O(keys): Redis frees what they held beside its other work
-- Notes: atomic; safe to repeat: the tombstone has the number that was dropped. Every script that sends, claims or
--   settles trips over the tombstone before its first write (WRONGTYPE), which costs it nothing. Of meta stays what
--   epochs, fencing tokens and stamps of a later topic of this name have to be above. Works at maxmemory.
-- @include totals, redis

local store, meta = KEYS[1], KEYS[2]
local deletion, step, groups = ARGV[1], ARGV[2], tonumber(ARGV[3])

local cleared = redis.call('HGET', meta, 'cleared') or ''
local text = redis.pcall('GET', store)
local owner, number
if type(text) == 'string' then
  owner, number = string.match(text, '^rmq:deleted (%S+) (%d+)$')
end
if step == 'clear' or deletion <= cleared or (owner and deletion < owner) then
  replicate(meta)
  if step == 'clear' and owner and owner <= deletion then
    redis.call('UNLINK', store)
  end
  if step == 'clear' and cleared < deletion then
    redis.call('HSET', meta, 'cleared', deletion)
  end
  return { 'cleared', '0' }
end
if not owner then
  number = redis.call(groups and 'XLEN' or 'ZCARD', store)
  if groups and redis.call('EXISTS', store) == 1 and #redis.call('XINFO', 'GROUPS', store) > groups then
    replicate(meta)
    return { 'groups', whole(number) }
  end
end
if owner ~= deletion then
  number = owner and 0 or number
  for i = 3, #KEYS do
    if string.find(KEYS[i], '^prepare{') or string.find(KEYS[i], '^retry{') or string.find(KEYS[i], '^dead[:{]') then
      number = number + redis.call('ZCARD', KEYS[i])
    end
  end
end

replicate(meta)
if step == 'ask' and owner ~= deletion and number > 0 then
  return { 'kept', whole(number) }
end
local kept = redis.call('HMGET', meta, 'epoch', 'ensemble', 'token_base', 'stamp')
redis.call('UNLINK', unpack(KEYS))
redis.call('SET', store, 'rmq:deleted ' .. deletion .. ' ' .. whole(number))
for i, field in ipairs({ 'epoch', 'ensemble', 'token_base', 'stamp' }) do
  if kept[1] and kept[i] then
    redis.call('HSET', meta, field, kept[i])
  end
end
return { 'buried', whole(number) }
