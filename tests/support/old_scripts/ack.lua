-- Ack claimed messages of one slot: done, out of prepare.
--
-- KEYS[1]  store    ZSET  content -> score
-- KEYS[2]  prepare  ZSET  content -> claim score
-- KEYS[3]  body     HASH  content -> body
-- KEYS[4]  meta     HASH  epoch, ensemble, paused, totals
-- KEYS[5]  error    HASH  content -> last failure, JSON
-- ARGV[1]  epoch     whole number; 0 without ZooKeeper
-- ARGV[2]  ensemble  identity of the ZooKeeper ensemble; empty without
-- ARGV[3..] acks: see settle_acks
-- Returns: contents whose claim was no longer ours; empty when all were acked
-- Errors: RMQ_FENCED stored_epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written
-- Complexity: O(n log N)
-- Notes: compare-and-set on the claim score: a stale ack changes nothing. Never repeated after a lost reply.
-- Notes in a table of totals that something happened `number` times.
local function count(totals, name, number)
  totals[name] = (totals[name] or 0) + number
end
-- Adds to the slot's counters: name -> how many.
local function write_totals(meta, totals)
  for name, number in pairs(totals) do
    if number ~= 0 then
      redis.call('HINCRBY', meta, name, number)
    end
  end
end
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
-- Deletes the bodies of up to 1,000 contents that have just left prepare, except where a fresh copy is in store.
local function drop_bodies(slot, contents)
  local fresh = redis.call('ZMSCORE', slot.store, unpack(contents))
  local gone = {}
  for i = 1, #contents do
    if not fresh[i] then
      gone[#gone + 1] = contents[i]
    end
  end
  if #gone > 0 then
    redis.call('HDEL', slot.body, unpack(gone))
  end
end
-- Acks: ARGV[at] groups, each a claim score, a number, and so many contents. Compare-and-set on the claim score: the
-- others go into `stale` and nothing changes for them. Returns the position after the last group.
local function settle_acks(slot, at, totals, stale)
  local groups = tonumber(ARGV[at])
  at = at + 1
  if groups == 0 then
    return at
  end
  local has_errors = not slot.quiet and redis.call('HLEN', slot.error) > 0
  local has_bodies = not slot.quiet and redis.call('HLEN', slot.body) > 0
  for _ = 1, groups do
    local claim_score, last = ARGV[at], at + 1 + tonumber(ARGV[at + 1])
    for first = at + 2, last, 1000 do
      local contents = { unpack(ARGV, first, math.min(first + 999, last)) }
      local scores = redis.call('ZMSCORE', slot.prepare, unpack(contents))
      local mine = contents
      for i = 1, #scores do
        if scores[i] ~= claim_score then
          mine = {}
          break
        end
      end
      if mine ~= contents then
        for i = 1, #scores do
          local list = scores[i] == claim_score and mine or stale
          list[#list + 1] = contents[i]
        end
      end
      if #mine > 0 then
        count(totals, 'acked', redis.call('ZREM', slot.prepare, unpack(mine)))
        if has_errors then
          redis.call('HDEL', slot.error, unpack(mine))
        end
        if has_bodies then
          drop_bodies(slot, mine)
        end
      end
    end
    at = last + 1
  end
  return at
end

local slot = { store = KEYS[1], prepare = KEYS[2], body = KEYS[3], meta = KEYS[4], error = KEYS[5] }
local epoch, ensemble = ARGV[1], ARGV[2]

local refusal, newer = check_fence(slot.meta, epoch, ensemble)
if refusal then
  return refusal
end
for _, zset in ipairs({ slot.store, slot.prepare }) do
  redis.call('ZCARD', zset)
end
for _, hash in ipairs({ slot.body, slot.error }) do
  redis.call('HLEN', hash)
end

local totals, stale = {}, {}
begin_write(slot, newer, epoch, ensemble)
settle_acks(slot, 3, totals, stale)
write_totals(slot.meta, totals)
return stale
