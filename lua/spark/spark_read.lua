-- Read one chunk of a streaming query's batch: claim it the first time, give out the same messages ever after.
--
-- KEYS[1]   store       ZSET  content -> score
-- KEYS[2]   prepare     ZSET  content -> claim score
-- KEYS[3]   retry       ZSET  content -> retry score
-- KEYS[4]   dead        ZSET  content -> time of death, ms
-- KEYS[5]   body        HASH  content -> body
-- KEYS[6]   meta        HASH  epoch, ensemble, paused, stamp, lease, totals
-- KEYS[7]   error       HASH  content -> last failure, JSON
-- KEYS[8]   reason      HASH  content -> why it died, JSON
-- KEYS[9]   dead_body   HASH  content -> body of the dead
-- KEYS[10]  query       HASH  generation, acked, owner, halved (last batch that gave some back), chunks
-- KEYS[11]  query_body  HASH  content -> body as it was claimed
-- KEYS[12]  held?       HASH  content -> record in flight; only where the topic merges
-- ARGV[1]   generation   of the query's driver
-- ARGV[2]   seq          number of the batch, from 1
-- ARGV[3]   chunk        number of the chunk in this slot's part of the batch, from 0
-- ARGV[4]   limit        most messages in the chunk, 1 to 1,000; fewer are claimed where they have more than most_bytes
-- ARGV[5]   before       most messages in the chunks of the batch before this one
-- ARGV[6]   size         most messages in the batch
-- ARGV[7]   order        `high`: highest score first; `any`: the same, and equal scores in an order that the stamp
--   decides; `low`: lowest, and only those due
-- ARGV[8]   max_retries  0 to 999
-- ARGV[9]   max_replays  after so many replays the batch is halved with each further one
-- ARGV[10]  strict       '1': refuse when this driver lost messages of the chunk; '0': leave those out
-- ARGV[11]  keep_s       seconds for which an unused record is kept
-- ARGV[12]  lease_ms     ms
-- ARGV[13]  most_bytes   most bytes of contents and bodies that are claimed the first time, but for a single message
-- ARGV[14]  bodies       '1': with bodies; '0': without
-- ARGV[15]  epoch        of the owner; 0 without ZooKeeper
-- ARGV[16]  ensemble     identity of its ZooKeeper ensemble
-- ARGV[17]  start        where to search from the first time, 0 or `resume` of the call before
-- Returns: { claimed the first time, left out now, buried now, { content, store score, ... }, { body or nil, ... },
--   resume }; the table of bodies is empty when no message of the batch has one, and without bodies. resume, which may
--   be left out: a bound has ended the search before it found anything; the chunk is not read yet, and the same call
--   goes on from this rank
-- Errors: RMQ_FENCED stored_epoch epoch, RMQ_ENSEMBLE stored_ensemble; RMQ_DRIVER generation of a newer driver;
--   RMQ_ACKED seq; RMQ_LOST number; RMQ_COPIES number; nothing was written
-- Complexity: O(limit log N)
-- Notes: safe to repeat. A driver that restarts reads its batch anew: what the chunk still holds is renewed, what a
--   sweep put back is taken again, each at the price of a retry; what others have taken or settled is left to them.
--   Where Redis has dropped copies of bodies, the chunk cannot be given out as it was: the driver is refused, and to
--   the next one the chunk is empty; the leases bring its messages back.
--   A batch that was begun anew too often is halved with each further replay: the first half stays, what does not goes
--   back to store as it was, from where chunks of the batch that nobody has read yet do not claim it again: they stay
--   empty. Of a batch that fails even so one message dies: the last one that was left.
--   An owner's driver that has lost the slot reads nothing from it, and the chunk is forgotten: no ack shall take what
--   its batch has not read. Where it has read the chunk before, and is strict, it is refused.
-- @include clock, fence, totals, redis, bodies, room, claim_fast, take, spark_chunk, spark_replay, spark_refuse

-- How many of flat items have a copy of their body, and these copies.
local function copies_of(slot, items)
  local number, bodies = 0, {}
  if #items > 0 and redis.call('HLEN', slot.query_body) > 0 then
    bodies = redis.call('HMGET', slot.query_body, unpack(contents_of(items)))
  end
  for _, body in ipairs(bodies) do
    number = number + (body and 1 or 0)
  end
  return number, bodies
end

local slot = with_keys({
  store = KEYS[1], prepare = KEYS[2], retry = KEYS[3], dead = KEYS[4], body = KEYS[5], meta = KEYS[6],
  error = KEYS[7], reason = KEYS[8], dead_body = KEYS[9], query = KEYS[10], query_body = KEYS[11],
}, { KEYS[12] })
local generation, seq, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
local field = ARGV[2] .. ':' .. ARGV[3]
local before, size = tonumber(ARGV[5]), tonumber(ARGV[6])
local highest_first, max_retries, max_replays = ARGV[7] ~= 'low', tonumber(ARGV[8]), tonumber(ARGV[9])
local strict, keep_s, lease_ms, most_bytes = ARGV[10] == '1', ARGV[11], tonumber(ARGV[12]), tonumber(ARGV[13])

local now_ms = read_clock()
local refusal, newer, paused, stored = check_fence(slot.meta, ARGV[15], ARGV[16], true)
local _
if refusal and ARGV[16] ~= '' and string.find(refusal.err, 'RMQ_FENCED', 1, true) then
  local lost = read_chunk(slot.query, field)
  local number = lost and #lost.items / 2 or 0
  local late = check_batch(slot.query, generation, seq)
  if late or strict and number > 0 and lost.generation == generation then
    return late or refusal
  end
  forget_chunk(slot.query, slot.query_body, field, lost)
  return { '0', whole(number), '0', {}, {} }
end
refusal = refusal or check_batch(slot.query, generation, seq)
if refusal then
  return refusal
end
local sizes = measure(slot)
slot.quiet, slot.unheld = sizes.quiet, sizes.prepare == 0
slot.piece, slot.any, slot.budget = 256, ARGV[7] == 'any', { bytes = 2097152 }
begin_room(slot, { left = most_bytes, first = true }, sizes.body + (sizes.held or 0), stored[8])
slot.weight = slot.held and 6 or 1 -- each value is copied, too
redis.call('HLEN', slot.query_body)
local chunk = read_chunk(slot.query, field)
local mine, left_out, buried, forgotten = false, 0, 0, 0
local kept = 0
for _, content in ipairs(chunk and (chunk.bodied or 0) > 0 and contents_of(chunk.items) or {}) do
  kept = kept + redis.call('HEXISTS', slot.query_body, content)
end
if chunk and (chunk.bodied or 0) > kept then
  forgotten = #chunk.items / 2
  if chunk.generation == generation then
    return redis.error_reply('RMQ_COPIES ' .. forgotten)
  end
  chunk.items = {}
end
if chunk and chunk.generation == generation then
  local left
  mine, _, left = held_in_chunk(slot, chunk)
  left_out = #chunk.items / 2 - #mine / 2
  if strict and left_out > 0 then
    return redis.error_reply('RMQ_LOST ' .. left_out)
  end
  chunk.items, chunk.left = mine, left
end

local totals, clock = {}, read_slot_clock(stored[4], stored[5], now_ms, lease_ms)
local stamp = next_stamp(slot, clock, now_ms)
begin_write(slot, newer, ARGV[15], ARGV[16])
slot.retried = slot.held and sizes.retry > 0
local bodied, bodies
if not chunk then
  local items, left = {}, max_retries
  if not paused and redis.call('HGET', slot.query, 'halved') ~= ARGV[2] then
    local resume
    items, resume = take_due(slot, highest_first, limit, tonumber(ARGV[17]), now_ms, stamp, max_retries, totals)
    if #items == 0 and resume > 0 then
      return { '0', '0', '0', {}, {}, whole(resume) }
    elseif #items > 0 and tonumber(items[highest_first and #items or 2]) <= max_retries then
      left = {}
      for i = 2, #items, 2 do
        local score = tonumber(items[i])
        left[i / 2] = score > max_retries and max_retries or math.max(0, math.ceil(score) - 1)
      end
    end
  end
  chunk = { stamp = stamp, replays = 0, claimed = #items / 2, items = items, left = left }
  if #items > 0 and sizes.body > 0 then
    local names, copies = contents_of(items), {}
    bodies, bodied = read_bodies(slot, names), 0
    if slot.held then
      -- @include merge_fold
      bodies = hold(slot, names, bodies)
    end
    for n, body in ipairs(bodies) do
      if body then
        bodied = bodied + 1
        copies[2 * bodied - 1], copies[2 * bodied] = names[n], body
      end
    end
    if bodied > 0 then
      redis.call('HSET', slot.query_body, unpack(copies))
    end
  end
elseif not mine then
  chunk.replays = chunk.replays + 1
  redis.call('HDEL', slot.query, refused_field(field))
  local share = share_of(chunk, size - limit + chunk.claimed, max_replays)
  left_out, buried = replay_chunk(slot, chunk, share, before, now_ms, stamp, max_retries, totals)
  left_out = left_out + forgotten
  if chunk.put_back > 0 then
    redis.call('HSET', slot.query, 'halved', ARGV[2])
  end
end
note_owner(slot.query, ARGV[15], ARGV[16]) -- a refusal of rows is checked against it
if not bodied then
  bodied, bodies = copies_of(slot, chunk.items)
elseif bodied == 0 then
  bodies = {}
end
if chunk.generation ~= generation then
  chunk.generation, chunk.bodied = generation, bodied
  chunk.lenient = ARGV[16] ~= '' and not strict or nil
  redis.call('HSET', slot.query, 'generation', whole(generation), field, cmsgpack.pack(chunk))
  write_state(slot.query, field, chunk.stamp, #chunk.items / 2, chunk.put_back, #chunk.items / 2)
  redis.call('EXPIRE', slot.query, keep_s)
  redis.call('EXPIRE', slot.query_body, keep_s)
  if #chunk.items > 0 then
    note_stamp(slot, clock, stamp, now_ms)
  end
  write_totals(slot.meta, totals)
end
return { whole(chunk.claimed), whole(left_out), whole(buried), chunk.items, ARGV[14] == '1' and bodies or {} }
