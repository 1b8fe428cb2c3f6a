-- Nack claimed messages of one slot: back to store, to retry with a delay, to dead, or released as if never claimed.
--
-- KEYS[1]   store      ZSET  content -> score
-- KEYS[2]   prepare    ZSET  content -> claim score
-- KEYS[3]   retry      ZSET  content -> retry score
-- KEYS[4]   dead       ZSET  content -> time of death, ms
-- KEYS[5]   body       HASH  content -> body
-- KEYS[6]   meta       HASH  epoch, ensemble, paused, totals
-- KEYS[7]   error      HASH  content -> last failure, JSON
-- KEYS[8]   reason     HASH  content -> why it died, JSON
-- KEYS[9]   dead_body  HASH  content -> body of the dead
-- KEYS[10]  wake       channel
-- KEYS[11]  born       ZSET  content -> time of its last send, ms; only given for PRIORITY with a time to live
-- ARGV[1]   epoch         whole number; 0 without ZooKeeper
-- ARGV[2]   ensemble      identity of the ZooKeeper ensemble; empty without
-- ARGV[3]   max_retries   0 to 999
-- ARGV[4]   max_dead_age  ms
-- ARGV[5]   max_dead      most dead in this slot
-- ARGV[6]   publish       command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[7..] nacks: see settle_nacks
-- Returns: contents whose claim was no longer ours; empty when all were settled
-- Errors: RMQ_FENCED stored_epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written
-- Complexity: O(n log N)
-- Notes: compare-and-set on the claim score: a stale nack changes nothing. Never repeated after a lost reply.
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
-- Sizes of the structures of a slot. Since a read fails on a key of a foreign type, it is also the check that no
-- later write can fail half-way. Most slots have but store, prepare and meta: then one command sees that, `quiet`.
-- `brief`: in a quiet slot leave out store and prepare, for who reads them before its first write, or never writes.
local function measure(slot, brief)
  local others = redis.call('EXISTS', slot.retry, slot.dead, slot.body, slot.error, slot.reason, slot.dead_body)
  if others == 0 then
    local store, prepare = nil, nil
    if not brief then
      store, prepare = redis.call('ZCARD', slot.store), redis.call('ZCARD', slot.prepare)
    end
    return { quiet = true, store = store, prepare = prepare, retry = 0, dead = 0, body = 0, error = 0 }
  end
  return {
    quiet = false, store = redis.call('ZCARD', slot.store), prepare = redis.call('ZCARD', slot.prepare),
    retry = redis.call('ZCARD', slot.retry), dead = redis.call('ZCARD', slot.dead),
    body = redis.call('HLEN', slot.body), error = redis.call('HLEN', slot.error),
    reason = redis.call('HLEN', slot.reason), dead_body = redis.call('HLEN', slot.dead_body),
  }
end
-- Remembers why a delivery failed, and since when this message has been failing. A first delivery starts afresh.
local function record_failure(slot, content, first_delivery, now_ms, kind, message)
  local first_ms = string.format('%.0f', now_ms)
  if not first_delivery then
    local earlier = redis.call('HGET', slot.error, content)
    if earlier then
      first_ms = cjson.decode(earlier).first_ms
    end
  end
  local record = { first_ms = first_ms, last_ms = string.format('%.0f', now_ms), type = kind, message = message }
  redis.call('HSET', slot.error, content, cjson.encode(record))
end
-- A claimed message has used up its retries, or was rejected: prepare -> dead, with reason and body. Beside a fresh
-- copy in store nothing is left to bury: it is counted, and the fresh copy has all its retries.
local function bury(slot, content, attempts, now_ms, totals)
  if redis.call('ZSCORE', slot.store, content) then
    count(totals, 'exhausted', 1)
    count(totals, 'merged', 1)
    redis.call('HDEL', slot.error, content)
    redis.call('ZREM', slot.prepare, content)
    return
  end
  if redis.call('ZADD', slot.dead, string.format('%.0f', now_ms), content) == 0 then
    count(totals, 'merged', 1)
  end
  count(totals, 'buried', 1)
  local failure = redis.call('HGET', slot.error, content)
  local reason = failure and cjson.decode(failure) or {}
  reason.attempts = attempts
  redis.call('HSET', slot.reason, content, cjson.encode(reason))
  local body = redis.call('HGET', slot.body, content)
  if body then
    redis.call('HSET', slot.dead_body, content, body)
    redis.call('HDEL', slot.body, content)
  else
    redis.call('HDEL', slot.dead_body, content)
  end
  redis.call('HDEL', slot.error, content)
  redis.call('ZREM', slot.prepare, content)
end
-- A claimed message goes back: to store with its retries left as score, or to retry until due_ms (0: at once). A
-- fresh copy in store stands as it is, with its own time or priority and all its retries.
local function roll_back(slot, content, retries_left, due_ms, totals)
  if redis.call('ZSCORE', slot.store, content) then
    count(totals, 'merged', 1)
    redis.call('HDEL', slot.error, content)
  elseif due_ms > 0 then
    local due_second = math.ceil(due_ms / 1000)
    redis.call('ZADD', slot.retry, string.format('%.0f', due_second * 1000 + retries_left), content)
    count(totals, 'retried', 1)
  else
    redis.call('ZADD', slot.store, retries_left, content)
    count(totals, 'retried', 1)
  end
  redis.call('ZREM', slot.prepare, content)
end
-- Nacks: ARGV[at] messages, each six values: content, claim score, verb, number, error type, error message. Verbs:
-- `retry` (number = delay in ms, 0 for at once), `bury`, `release` (never begun: back as it was, number = its store
-- score, no retry used up; a time to live that `slot.born` keeps begins anew). Compare-and-set on the claim score.
-- Returns the position after the last one and how many went back to store.
local function settle_nacks(slot, at, now_ms, max_retries, totals, stale)
  local last = at + 6 * tonumber(ARGV[at])
  local back = 0
  for i = at + 1, last, 6 do
    local content, claim_score, verb, number = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
    if redis.call('ZSCORE', slot.prepare, content) ~= claim_score then
      stale[#stale + 1] = content
    elseif verb == 'release' then
      if redis.call('ZADD', slot.store, 'NX', ARGV[i + 3], content) == 0 then
        count(totals, 'merged', 1)
        redis.call('HDEL', slot.error, content)
      elseif slot.born then
        redis.call('ZADD', slot.born, string.format('%.0f', now_ms), content)
      end
      count(totals, 'released', 1)
      redis.call('ZREM', slot.prepare, content)
      back = back + 1
    else
      local left = tonumber(claim_score) % 1000
      record_failure(slot, content, left == max_retries, now_ms, ARGV[i + 4], ARGV[i + 5])
      if verb == 'bury' or left == 0 then
        bury(slot, content, max_retries - left + 1, now_ms, totals)
      else
        roll_back(slot, content, left, number > 0 and now_ms + number or 0, totals)
        back = back + (number > 0 and 0 or 1)
      end
    end
  end
  return last + 1, back
end
-- Keeps the dead within their bounds: at most max_age_ms old, at most max_count of them; oldest first, up to 1,000
-- a call.
local function trim_dead(slot, now_ms, max_age_ms, max_count, totals)
  local before = '(' .. string.format('%.0f', now_ms - max_age_ms)
  local doomed = redis.call('ZRANGEBYSCORE', slot.dead, '-inf', before, 'LIMIT', 0, 1000)
  local excess = math.min(redis.call('ZCARD', slot.dead) - max_count, 1000)
  if excess > #doomed then
    doomed = redis.call('ZRANGE', slot.dead, 0, excess - 1)
  end
  if #doomed > 0 then
    count(totals, 'trimmed', redis.call('ZREM', slot.dead, unpack(doomed)))
    redis.call('HDEL', slot.reason, unpack(doomed))
    redis.call('HDEL', slot.dead_body, unpack(doomed))
  end
end

local slot = {
  store = KEYS[1], prepare = KEYS[2], retry = KEYS[3], dead = KEYS[4], body = KEYS[5], meta = KEYS[6],
  error = KEYS[7], reason = KEYS[8], dead_body = KEYS[9], born = KEYS[11],
}
local wake = KEYS[10]
local epoch, ensemble, max_retries = ARGV[1], ARGV[2], tonumber(ARGV[3])
local max_dead_age, max_dead, publish = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]

local now_ms = read_clock()
local refusal, newer = check_fence(slot.meta, epoch, ensemble)
if refusal then
  return refusal
end
measure(slot)
if slot.born then
  redis.call('ZCARD', slot.born)
end

local totals, stale = {}, {}
begin_write(slot, newer, epoch, ensemble)
local _, back = settle_nacks(slot, 7, now_ms, max_retries, totals, stale)
trim_dead(slot, now_ms, max_dead_age, max_dead, totals)
write_totals(slot.meta, totals)
if back > 0 then
  redis.call(publish, wake, '0')
end
return stale
