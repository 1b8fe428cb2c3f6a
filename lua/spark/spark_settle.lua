-- Ack a chunk of a streaming query's batch, or renew its leases.
--
-- KEYS[1]  store       ZSET  content -> score
-- KEYS[2]  prepare     ZSET  content -> claim score
-- KEYS[3]  body        HASH  content -> body
-- KEYS[4]  meta        HASH  epoch, ensemble, paused, stamp, lease, totals
-- KEYS[5]  error       HASH  content -> last failure, JSON
-- KEYS[6]  query       HASH  generation, acked, owner, chunks
-- KEYS[7]  query_body  HASH  content -> body as it was claimed
-- KEYS[8]  retry       ZSET  content -> retry score; read only
-- KEYS[9]  dead        ZSET  content -> time of death, ms
-- KEYS[10] reason      HASH  content -> why it died, JSON
-- KEYS[11] dead_body   HASH  content -> body of the dead
-- KEYS[12] held?       HASH  content -> record in flight; only where the topic merges
-- ARGV[1]  generation  of the query's driver
-- ARGV[2]  seq         number of the batch, from 1
-- ARGV[3]  chunk       number of the chunk in this slot's part of the batch; -1: none, only the mark is set
-- ARGV[4]  verb        `ack` or `renew`
-- ARGV[5]  keep_s      seconds for which an unused record is kept
-- ARGV[6]  lease_ms    ms
-- ARGV[7]  keep_first  '1': a send that merges leaves the message as it is; else '0'
-- ARGV[8]  max_retries 0 to 999
-- ARGV[9]  epoch       of the owner; 0 without ZooKeeper
-- ARGV[10] ensemble    identity of its ZooKeeper ensemble; with chunk -1 any text: then no epoch is checked
-- Returns: { acked or renewed, no longer ours, put back to store by the last replay, refused, more }; all 0 for a chunk
--   that was never read or is acked already. more: '1' where only some of what the query has refused was looked at, and
--   nothing else was done: the same call again goes on from there. It may be left out.
-- Errors: RMQ_FENCED stored_epoch epoch, RMQ_ENSEMBLE stored_ensemble; RMQ_DRIVER generation of a newer driver;
--   RMQ_ACKED seq where a later batch is acked; nothing was written
-- Complexity: O(n log N)
-- Notes: safe to repeat. Compare-and-set on the claim scores: what others hold by now is left alone. An ack first
--   leaves its mark, so that no late reader of the batch claims new messages in its name. An ack also takes what a
--   sweep has put back since, as long as nothing else has come of it, see committed_elsewhere. A renewal finds what the
--   chunk holds by the stamp of its claims, which no other claim of the slot has: it does not read the chunk's list.
--   What the query has refused is not acked: it dies or waits for a retry. Where others hold it by now, it stays there.
--   The mark alone is the query's own, and touches nothing of the slot: whoever owns it, a worker's driver may set it.
-- @include clock, fence, totals, redis, bodies, spark_chunk, spark_replay, spark_refuse

local slot = with_keys({
  store = KEYS[1], prepare = KEYS[2], body = KEYS[3], meta = KEYS[4], error = KEYS[5], query = KEYS[6],
  query_body = KEYS[7], retry = KEYS[8], dead = KEYS[9], reason = KEYS[10], dead_body = KEYS[11],
}, { KEYS[12] })
local generation, seq, field = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[2] .. ':' .. ARGV[3]
local acking, keep_s, lease_ms, keep_first = ARGV[4] == 'ack', ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1'

local now_ms = read_clock()
local refusal, newer, stored, _ = false, false, nil, nil
if ARGV[3] ~= '-1' or ARGV[10] == '' then
  refusal, newer, _, stored = check_fence(slot.meta, ARGV[9], ARGV[10], true)
end
local acked
if not refusal then
  refusal, acked = check_driver(slot.query, generation)
end
if not refusal and acking and seq < acked then
  refusal = redis.error_reply('RMQ_ACKED ' .. acked)
end
if refusal then
  return refusal
end
for _, zset in ipairs({ slot.store, slot.prepare, slot.retry, slot.dead }) do
  redis.call('ZCARD', zset)
end
for _, hash in ipairs({ slot.reason, slot.dead_body }) do
  redis.call('HLEN', hash)
end
local has_bodies, has_errors = redis.call('HLEN', slot.body) > 0, redis.call('HLEN', slot.error) > 0
local has_copies = redis.call('HLEN', slot.query_body) > 0
if slot.held then
  redis.call('HLEN', slot.held)
end
local stamp, number, put_back, held, lost = read_state(slot.query, field)
local refused = acking and read_refused(slot.query, field)

begin_write(slot, newer, ARGV[9], ARGV[10])
if acking then
  redis.call('HSET', slot.query, 'generation', whole(generation), 'acked', whole(seq))
  redis.call('EXPIRE', slot.query, keep_s)
end

local function claims_between(command)
  return redis.call(command, slot.prepare, whole(stamp * 1000), whole(stamp * 1000 + 999))
end

local function ack_chunk()
  local chunk = read_chunk(slot.query, field)
  local _, names, left = held_in_chunk(slot, chunk)
  local totals, all, contents, ended = {}, #chunk.items / 2, contents_of(chunk.items), 0
  if refused then
    local more
    slot.budget = { bytes = 2097152 }
    names, ended, more = settle_refused(slot, names, left, refused, tonumber(ARGV[8]), now_ms, totals)
    if more then
      refused.ended = (refused.ended or 0) + ended
      redis.call('HSET', slot.query, refused_field(field), cmsgpack.pack(refused))
      write_totals(slot.meta, totals)
      return { '0', '0', '0', whole(ended), '1' }
    end
    all = all - (refused.ended or 0)
    chunk = without_refused(chunk, refused)
  end
  local swept = has_errors and committed_elsewhere(slot, chunk, names, lost, keep_first) or {}
  if #names > 0 then
    tally(totals, 'acked', redis.call('ZREM', slot.prepare, unpack(names)))
    if has_errors then
      redis.call('HDEL', slot.error, unpack(names))
    end
    if slot.held then
      redis.call('HDEL', slot.held, unpack(names))
    elseif has_bodies then
      drop_bodies(slot, names)
    end
  end
  if #swept > 0 then
    tally(totals, 'acked', redis.call('ZREM', slot.store, unpack(swept)))
    forget_unused(slot, swept)
  end
  if has_copies and all > 0 then
    redis.call('HDEL', slot.query_body, unpack(contents))
  end
  redis.call('HDEL', slot.query, field, state_field(field), refused_field(field))
  write_totals(slot.meta, totals)
  local done = #names + #swept
  return { whole(done), whole(all - done - ended), whole(chunk.put_back or 0), whole(ended) }
end

if not stamp then
  return { '0', '0', '0', '0' }
end
if acking and not (refused or has_bodies or has_errors or has_copies or slot.held)
  and claims_between('ZCOUNT') == number then
  write_totals(slot.meta, { acked = claims_between('ZREMRANGEBYSCORE') })
  redis.call('HDEL', slot.query, field, state_field(field))
  return { whole(number), '0', whole(put_back), '0' }
end
if acking then
  return ack_chunk()
end

note_owner(slot.query, ARGV[9], ARGV[10])
local found = redis.call('ZRANGEBYSCORE', slot.prepare, whole(stamp * 1000), whole(stamp * 1000 + 999), 'WITHSCORES',
  'LIMIT', 0, 1000)
local clock = read_slot_clock(stored[4], stored[5], now_ms, lease_ms)
local renewed, claims = next_stamp(slot, clock, now_ms), {}
for i = 1, #found, 2 do
  claims[i], claims[i + 1] = whole(renewed * 1000 + found[i + 1] - stamp * 1000), found[i]
end
local still = #claims / 2
if still > 0 then
  redis.call('ZADD', slot.prepare, 'XX', unpack(claims))
  note_stamp(slot, clock, renewed, now_ms)
  lost = still < held and lost .. ' ' .. whole(stamp) or lost
  write_state(slot.query, field, renewed, number, put_back, still, lost)
end
redis.call('EXPIRE', slot.query, keep_s)
redis.call('EXPIRE', slot.query_body, keep_s)
return { whole(still), whole(number - still), whole(put_back or 0), '0' }
