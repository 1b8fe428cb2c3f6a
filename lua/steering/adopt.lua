-- Move one slot, or a group's part of it, over to another ZooKeeper ensemble, or to none, on purpose.
--
-- KEYS[1]  meta  HASH  epoch, ensemble, paused, totals; of a stream topic's group its own
-- ARGV[1]  from_ensemble  identity of the ensemble that the slot is expected to belong to; empty: read only
-- ARGV[2]  to_ensemble    identity of the ensemble it shall belong to; empty: to consumers without ZooKeeper
-- Returns: { ensemble before or '', epoch before or '0', '1' if it was moved else '0' }
-- Errors: RMQ_ENSEMBLE stored_ensemble, where that is neither of the two; nothing was written
-- Complexity: O(1)
-- Notes: atomic. Safe to repeat: what has moved stays. Every epoch of a live ensemble is above the 1 that is written;
--   it shuts out the old ensemble's workers at once, where 0 would let anybody in. A slot that nobody has owned yet is
--   left as it is. Begins with a removal, so that it works at maxmemory. `token_base` grows by the epoch that
--   goes: tokens of later owners, that base and their epoch, are above all that were given before.
-- @include totals

local meta, from, to = KEYS[1], ARGV[1], ARGV[2]

local stored = redis.call('HMGET', meta, 'epoch', 'ensemble')
local epoch, ensemble = stored[1] or '0', stored[2] or ''
if from == '' then
  return { ensemble, epoch, '0' }
elseif ensemble == '' or ensemble == to then
  replicate(meta)
  return { ensemble, epoch, '0' }
end
if ensemble ~= from then
  return redis.error_reply('RMQ_ENSEMBLE ' .. ensemble)
end
redis.call('HDEL', meta, 'clear') -- the epoch for which a group's slot was clear was the old ensemble's
redis.call('HINCRBY', meta, 'token_base', epoch)
redis.call('HINCRBY', meta, 'adopted', '1') -- first: in a hash slot that moves, a key that was emptied is out of reach
if to == '' then
  redis.call('HDEL', meta, 'epoch', 'ensemble')
else
  redis.call('HSET', meta, 'epoch', '1', 'ensemble', to)
end
return { ensemble, epoch, '1' }
