-- Ack a chunk of a streaming query's batch, or renew its leases.
--
-- KEYS[1]  store       ZSET  content -> score
-- KEYS[2]  prepare     ZSET  content -> claim score
-- KEYS[3]  body        HASH  content -> body
-- KEYS[4]  meta        HASH  epoch, ensemble, paused, stamp, lease, totals
-- KEYS[5]  error       HASH  content -> last failure, JSON
-- KEYS[6]  query       HASH  generation, acked, chunks
-- KEYS[7]  query_body  HASH  content -> body as it was claimed
-- KEYS[8]  held?       HASH  content -> record in flight; only where the topic merges
-- ARGV[1]  generation  of the query's driver
-- ARGV[2]  seq         number of the batch, from 1
-- ARGV[3]  chunk       number of the chunk in this slot's part of the batch; -1: none, only the mark is set
-- ARGV[4]  verb        `ack` or `renew`
-- ARGV[5]  keep_s      seconds for which an unused record is kept
-- ARGV[6]  lease_ms    ms
-- Returns: { acked or renewed, no longer ours, put back to store by the last replay }; all 0 for a chunk that was never
--   read or is acked already
-- Errors: RMQ_FENCED stored_epoch; RMQ_DRIVER generation of a newer driver; RMQ_ACKED seq where a later batch is acked;
--   nothing was written
-- Complexity: O(n log N)
-- Notes: safe to repeat. Compare-and-set on the claim scores: what others hold by now is left alone. An
--   ack first leaves its mark, so that no late reader of the batch claims new messages in its name.
-- @include count
-- @include write_totals
-- @include read_clock
-- @include check_fence
-- @include slot_clock
-- @include next_stamp
-- @include note_stamp
-- @include begin_write
-- @include drop_bodies
-- @include check_driver
-- @include held_in_chunk

local slot = {
  store = KEYS[1], prepare = KEYS[2], body = KEYS[3], meta = KEYS[4], error = KEYS[5], query = KEYS[6],
  query_body = KEYS[7], held = KEYS[8],
}
local generation, seq, field = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[2] .. ':' .. ARGV[3]
local acking, keep_s, lease_ms = ARGV[4] == 'ack', ARGV[5], tonumber(ARGV[6])

local now_ms = read_clock()
local refusal, _, _, stored = check_fence(slot.meta, '0', '', true)
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
for _, zset in ipairs({ slot.store, slot.prepare }) do
  redis.call('ZCARD', zset)
end
local has_bodies, has_errors = redis.call('HLEN', slot.body) > 0, redis.call('HLEN', slot.error) > 0
local has_copies = redis.call('HLEN', slot.query_body) > 0
local record = redis.call('HGET', slot.query, field)

begin_write(slot)
if acking then
  redis.call('HSET', slot.query, 'generation', generation, 'acked', seq)
  redis.call('EXPIRE', slot.query, keep_s)
end
if not record then
  return { '0', '0', '0' }
end
local chunk = cmsgpack.unpack(record)
local number = #chunk.items / 2
local _, names, left = held_in_chunk(slot, chunk)
if acking then
  local totals = {}
  if #names > 0 then
    count(totals, 'acked', redis.call('ZREM', slot.prepare, unpack(names)))
    if has_errors then
      redis.call('HDEL', slot.error, unpack(names))
    end
    if slot.held then
      redis.call('HDEL', slot.held, unpack(names))
    elseif has_bodies then
      drop_bodies(slot, names)
    end
  end
  if has_copies and number > 0 then
    redis.call('HDEL', slot.query_body, unpack(contents_of(chunk.items)))
  end
  redis.call('HDEL', slot.query, field)
  write_totals(slot.meta, totals)
  return { whole(#names), whole(number - #names), whole(chunk.put_back or 0) }
end
local claims = {}
local clock = read_slot_clock(stored[4], stored[5], now_ms, lease_ms)
local stamp = next_stamp(slot, clock, now_ms)
local same = type(left) == 'number' and whole(stamp * 1000 + left)
for n = 1, #names do
  claims[#claims + 1] = same or whole(stamp * 1000 + left[n])
  claims[#claims + 1] = names[n]
end
if #claims > 0 then
  redis.call('ZADD', slot.prepare, 'XX', unpack(claims))
  note_stamp(slot, clock, stamp, now_ms)
end
if #names < number then -- the others stay in the list: a later driver takes back what a sweep has put back
  local lefts = {}
  for n, name in ipairs(names) do
    lefts[name] = type(left) == 'number' and left or left[n]
  end
  chunk.left = {}
  for n, name in ipairs(contents_of(chunk.items)) do
    chunk.left[n] = lefts[name] or false
  end
end
chunk.second = stamp
redis.call('HSET', slot.query, field, cmsgpack.pack(chunk))
redis.call('EXPIRE', slot.query, keep_s)
redis.call('EXPIRE', slot.query_body, keep_s)
return { whole(#names), whole(number - #names), whole(chunk.put_back or 0) }
