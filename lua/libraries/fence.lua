-- Who may change a slot: the epoch and the ensemble in meta, and locks with an expiry. Invariant: a script that claims
-- or settles reads the fence, and all that its writes could trip over, before its first write; a worker with an older
-- epoch writes nothing. Also what calls for several slots share: with_keys, serve_slots, with_base.
-- @include redis

-- Who may change this slot. Reads meta, writes nothing. Returns a refusal or false, whether this epoch is newer
-- than the stored one, whether claims are paused, and what it has read: epoch, ensemble, paused; then the `fields`; or,
-- where these are `true`, what a claim changes: stamp, lease, delivered, acked and body_bound. Epoch 0 stands for a
-- consumer without ZooKeeper.
local function check_fence(meta, epoch, ensemble, fields)
  local stored
  if fields == true then
    stored = redis.call('HMGET', meta, 'epoch', 'ensemble', 'paused', 'stamp', 'lease', 'delivered', 'acked',
      'body_bound')
  else
    stored = redis.call('HMGET', meta, 'epoch', 'ensemble', 'paused', unpack(fields or {}))
  end
  local owner, mine = tonumber(stored[1] or 0), tonumber(epoch)
  if owner > 0 and mine > 0 and stored[2] and stored[2] ~= ensemble then
    return redis.error_reply('RMQ_ENSEMBLE ' .. stored[2]), false, false
  end
  if mine < owner then
    return redis.error_reply('RMQ_FENCED ' .. stored[1] .. ' ' .. epoch), false, false
  end
  return false, mine > owner, stored[3] == '1', stored
end

-- The first write of a script that settles or claims. A removal is allowed at maxmemory, and once a script has
-- written, Redis lets its later writes pass; so a full Redis can still be drained. This one removes nothing, ever.
local function begin_write(slot, newer, epoch, ensemble)
  redis.call('ZREMRANGEBYRANK', slot.store, 1, 0)
  if newer then
    redis.call('HSET', slot.meta, 'epoch', epoch, 'ensemble', ensemble)
  end
end

-- Reads sorted sets and hashes: a key of a foreign type fails the script before its first write.
local function check_types(zsets, hashes)
  for _, zset in ipairs(zsets) do
    redis.call('ZCARD', zset)
  end
  for _, hash in ipairs(hashes) do
    redis.call('HLEN', hash)
  end
end

-- Serves several slots in one call, each by itself: `part(base, at, true)` does what the values say that follow
-- ARGV[at], their number, with the keys behind KEYS[base]. Each slot has `width` keys; nil: as many as the first of its
-- values says. A part that fails has the text of its error as its reply, and harms no other slot. `zset`, one of the
-- keys, is written to first, by a removal that removes nothing: a server that takes no writes refuses all of the call;
-- a key of another type is its own slot's trouble. Returns a reply for each slot, or that refusal.
local function serve_slots(part, at, width, zset)
  local probe = redis.pcall('ZREMRANGEBYRANK', zset, 1, 0)
  if type(probe) == 'table' and probe.err and not string.find(probe.err, 'WRONGTYPE', 1, true) then
    return probe
  end
  local replies, base = {}, 0
  while ARGV[at] do
    local done, reply = pcall(part, base, at, true)
    if type(reply) == 'table' and reply.err then
      reply = reply.err
    end
    replies[#replies + 1] = done and reply or tostring(reply)
    at, base = at + tonumber(ARGV[at]) + 1, base + (width or tonumber(ARGV[at + 1]))
  end
  return replies
end

-- A slot's table with keys that only some topics have, by the beginnings of their names: `born`, `held`, `body`. In a
-- cluster one more stands behind them, `wake`, which never exists: see `absent_key` in rmq/_servers/cluster_map.py.
local function with_keys(slot, keys)
  for _, key in ipairs(keys) do
    slot[string.match(key, '^%l+')] = key
  end
  return slot
end

-- A claim's reply, with what the tokens of an owner start from as its value number `at`, where adopt has moved the
-- slot: no token may be below those that owners of the ensemble before were given.
local function with_base(reply, turn, meta, at)
  if turn.epoch ~= '0' and turn.limit > 0 and type(reply) == 'table' and not reply.err then
    local base = redis.call('HGET', meta, 'token_base')
    if base then
      reply[at - 1] = reply[at - 1] or false
      reply[at] = base
    end
  end
  return reply
end

-- A lock with an expiry, in a field of a hash: its holder, the end of the holder's time in ms, and what the holder has
-- noted, a number or nothing. A name of a holder has no blanks. Redis' clock may be set back: an end that lies further
-- ahead than `longest_ms`, for which nobody holds the lock, counts as over.
--
-- Returns the last holder, the end of its time, what it has noted, and whether the lock is held.
local function read_lock(hash, field, now_ms, longest_ms)
  local holder, till, noted = string.match(redis.call('HGET', hash, field) or '', '^(%S+) (%d+) ?(%d*)$')
  till = tonumber(till or 0)
  return holder, till, tonumber(noted), till > now_ms and till <= now_ms + longest_ms
end

local function write_lock(hash, field, holder, till, noted)
  redis.call('HSET', hash, field, holder .. ' ' .. whole(till) .. (noted and ' ' .. whole(noted) or ''))
end
