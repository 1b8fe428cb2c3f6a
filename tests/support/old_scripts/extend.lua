-- Renew the leases of claimed messages of one slot: they count from now again.
--
-- KEYS[1]  store    ZSET  content -> score; takes the first, empty write only
-- KEYS[2]  prepare  ZSET  content -> claim score
-- KEYS[3]  meta     HASH  epoch, ensemble, paused, totals
-- ARGV[1]  epoch     whole number; 0 without ZooKeeper
-- ARGV[2]  ensemble  identity of the ZooKeeper ensemble; empty without
-- ARGV[3..] claim score and content, alternating
-- Returns: { now_ms, '1' or '0' per message: renewed, or no longer ours }
-- Errors: RMQ_FENCED stored_epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written
-- Complexity: O(n log N)
-- Notes: the new claim score is the second of now_ms x 1000 + the same retries left. Compare-and-set.
-- @include read_clock
-- Who may change this slot. Reads meta, writes nothing. Returns a refusal or false, whether this epoch is newer
-- than the stored one, and whether claims are paused. Epoch 0 stands for a consumer without ZooKeeper.
local function check_fence(meta, epoch, ensemble)
  local stored = redis.call('HMGET', meta, 'epoch', 'ensemble', 'paused')
  local owner, mine = tonumber(stored[1] or 0), tonumber(epoch)
  if owner > 0 and mine > 0 and stored[2] and stored[2] ~= ensemble then
    return redis.error_reply('RMQ_ENSEMBLE ' .. stored[2]), false, false
  end
  if mine < owner then
    return redis.error_reply('RMQ_FENCED ' .. stored[1]), false, false
  end
  return false, mine > owner, stored[3] == '1'
end
-- The first write of a script that settles or claims. A removal is allowed at maxmemory, and once a script has
-- written, Redis lets its later writes pass; so a full Redis can still be drained. No content is empty: a no-op.
local function begin_write(slot, newer, epoch, ensemble)
  redis.call('ZREM', slot.store, '')
  if newer then
    redis.call('HSET', slot.meta, 'epoch', epoch, 'ensemble', ensemble)
  end
end
-- A whole number as digits. Lua's own conversion keeps 14 of them and then turns to exponents. The same few times are
-- asked for again and again within a call, so they are kept.
local digits = {}
local function whole(number)
  local text = digits[number]
  if not text then
    text = string.format('%.0f', number)
    digits[number] = text
  end
  return text
end

local slot = { store = KEYS[1], prepare = KEYS[2], meta = KEYS[3] }
local epoch, ensemble = ARGV[1], ARGV[2]

local now_ms, now_s = read_clock()
local refusal, newer = check_fence(slot.meta, epoch, ensemble)
if refusal then
  return refusal
end
redis.call('ZCARD', slot.store)
redis.call('ZCARD', slot.prepare)

begin_write(slot, newer, epoch, ensemble)
local flags = {}
for i = 3, #ARGV, 2 do
  local claim_score, content = ARGV[i], ARGV[i + 1]
  local mine = redis.call('ZSCORE', slot.prepare, content) == claim_score
  if mine then
    redis.call('ZADD', slot.prepare, 'XX', whole(now_s * 1000 + tonumber(claim_score) % 1000), content)
  end
  flags[#flags + 1] = mine and '1' or '0'
end
return { whole(now_ms), table.concat(flags) }
