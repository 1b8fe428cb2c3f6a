-- Claim entries of one slot for a group, after settling the previous ones: first what has to be delivered again.
--
-- KEYS[1]  store      STREAM
-- KEYS[2]  group      HASH  epoch, ensemble, paused, state of the pass over the pending list, totals
-- KEYS[3]  retry      ZSET  padded id -> due ms; 0 for at once
-- KEYS[4]  dead       ZSET  id -> time of death, ms
-- KEYS[5]  error      HASH  id -> last failure, JSON
-- KEYS[6]  reason     HASH  id -> why it died, JSON
-- KEYS[7]  dead_body  HASH  id -> fields of the dead, packed
-- KEYS[8]  wake       channel
-- KEYS[9]  meta       HASH  totals of the stream, sizes of its entries: largest, sized; stamp, the last one of a claim
-- ARGV[1]   epoch         whole number; 0 without ZooKeeper
-- ARGV[2]   ensemble      identity of the ZooKeeper ensemble; empty without
-- ARGV[3]   group         its name
-- ARGV[4]   consumer      name of this consumer
-- ARGV[5]   lease_ms      ms
-- ARGV[6]   max_retries   0 to 999
-- ARGV[7]   limit         most entries to claim, 0 to 1,000; 0 settles only
-- ARGV[8]   scan_limit    most pending entries to look at, 1 to 1,000
-- ARGV[9]   max_dead_age_ms  ms
-- ARGV[10]  max_dead      most dead of the group in this slot
-- ARGV[11]  publish       command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[12]  most_bytes    of fields and values to hand over; the first entry may have more
-- ARGV[13]  piece         how many entries to read before their sizes are known, from 1
-- ARGV[14]  own         0, or: read new entries in a name of the claim's own, with this stamp at least: see holder_of
-- ARGV[15..] settlements  nacks, acks and whole claims to settle first: see settle_entries and settle_whole_reads
-- Returns: { now_ms, next_due_ms, swept, stale ids, entries, ids that were trimmed or deleted before they were acked,
--   ids and contents of further entries: first deliveries, with no other field; entries behind these; scores of whole
--   claims that have to be acked by name; stamp and number of the entries in the claim's own name, each 0 without }.
--   Entries are one flat table, since Redis sends each table of a table on its own: id, delivery count (0: the first,
--   in the claim's own name), how many values follow, field, value, ... Nothing due: empty tables.
-- Errors: RMQ_FENCED stored_epoch epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written
-- Complexity: O((limit + settled + scan_limit) log N)
-- Notes: redeliveries get half of the room while there is something new, so that neither holds up the other; an owner
--   keeps the order and takes them first. A new owner takes nothing while a lease of one before runs. A group that is
--   gone with a lost stream begins anew at its first entry, though not for one who only settles. Not to be repeated
--   after a lost reply: the lease settles it.
-- @include write_totals
-- @include read_clock
-- @include check_fence
-- @include begin_write
-- @include settle_entries
-- @include settle_whole_reads
-- @include drop_names
-- @include note_taken
-- @include trim_dead
-- @include take_retries
-- @include scan_pending
-- @include read_new
-- @include others_at_work
-- @include whole
-- @include hint

local slot = {
  store = KEYS[1], meta = KEYS[2], retry = KEYS[3], dead = KEYS[4], error = KEYS[5], reason = KEYS[6],
  dead_body = KEYS[7], group = ARGV[3], consumer = ARGV[4], left = {},
}
local wake, meta = KEYS[8], KEYS[9]
local epoch, ensemble, lease_ms, max_retries = ARGV[1], ARGV[2], tonumber(ARGV[5]), tonumber(ARGV[6])
local limit, scan_limit = tonumber(ARGV[7]), tonumber(ARGV[8])
local max_dead_age, max_dead = tonumber(ARGV[9]), tonumber(ARGV[10])
local publish, most_bytes, piece = ARGV[11], tonumber(ARGV[12]), tonumber(ARGV[13])
local least_stamp = tonumber(ARGV[14])

local now_ms = read_clock()
local refusal, newer, paused = check_fence(slot.meta, epoch, ensemble)
if refusal then
  return refusal
end
local length = redis.call('XLEN', slot.store)
local waits, died = false, false
slot.plain = redis.call('EXISTS', slot.retry, slot.dead, slot.error, slot.reason, slot.dead_body) == 0
if not slot.plain then -- to read a key is also to check its type, before the first write
  waits, died = redis.call('ZCARD', slot.retry) > 0, redis.call('ZCARD', slot.dead) > 0
  for _, hash in ipairs({ slot.error, slot.reason, slot.dead_body }) do
    redis.call('HLEN', hash)
  end
end
local sizes = redis.call('HMGET', meta, 'largest', 'sized', 'stamp')
local largest = tonumber(sizes[1] or 0)
local bound = sizes[2] and math.max(16384, largest) or nil
local oldest = redis.pcall('XPENDING', slot.store, slot.group, '-', '+', 1)
local saved = redis.call('HMGET', slot.meta, 'scan_at', 'scan_cursor', 'scan_start', 'scan_first', 'turn', 'stamp',
  'taken')

local totals, stale, lost, swept = {}, {}, {}, 0
local out = {
  flat = {}, ids = {}, contents = {}, tail = {}, number = 0, left = most_bytes, largest = 0,
  work = 64 - tonumber(ARGV[15]),
}
begin_write({ store = slot.retry, meta = slot.meta }, newer, epoch, ensemble)
if oldest.err then
  redis.call('XGROUP', 'CREATE', slot.store, slot.group, '0', 'MKSTREAM')
end
local back, at = settle_entries(slot, 15, now_ms, max_retries, totals, stale, lost)
local unmatched = settle_whole_reads(slot, at, tonumber(saved[7] or 0), totals)
local nacked = ARGV[15] ~= '0'
waits = waits or nacked
if died or nacked then
  trim_dead(slot, now_ms, max_dead_age, max_dead, totals)
end

local pass = {
  at = tonumber(saved[1]), cursor = saved[2] or '', start = tonumber(saved[3] or 0), first = tonumber(saved[4] or 0),
  pause = length > 4 * scan_limit and math.min(20, math.floor(lease_ms / 4 * scan_limit / length)) or 0,
}
if not pass.at or pass.at > now_ms + lease_ms then -- no lease ends later: the clock was ahead then
  pass.at = oldest[1] and now_ms or nil
end
local function redeliver(quota)
  local before = out.number
  if waits then
    swept = swept + take_retries(slot, now_ms, quota, out, totals, lost)
  end
  local left = quota - (out.number - before)
  swept = swept + scan_pending(slot, pass, now_ms, lease_ms, max_retries, left, scan_limit, out, totals, lost)
end

local more, others, busy_until = false, false, 0
local stamp, own = 0, 0
if limit > 0 and not paused then
  others, busy_until = others_at_work(slot, epoch, now_ms, lease_ms)
end
if limit > 0 and not paused and busy_until == 0 then
  local turn = tonumber(saved[5] or 0)
  redeliver(epoch ~= '0' and limit or math.floor((limit + turn) / 2))
  if limit % 2 == 1 then
    redis.call('HSET', slot.meta, 'turn', 1 - turn)
  end
  local room = limit - out.number
  if room == 0 or is_full(out) or epoch ~= '0' and waits and out.work <= 0 then
    more = true -- an owner reads on only once it has all that came back
  elseif not (others and others_at_work(slot, epoch, now_ms, lease_ms)) then
    -- who does much of the other work takes few new ones: those left over are due at once
    room = out.work <= 48 and math.min(room, 250) or room
    local reader = slot.consumer
    if least_stamp > 0 then
      -- the one before is for what is taken now; a group that was removed and made anew has not had it, either
      stamp = math.max(now_ms, least_stamp, tonumber(saved[6] or 0) + 2, tonumber(sizes[3] or 0) + 1)
      redis.call('HSET', meta, 'stamp', whole(stamp))
      redis.call('HSET', slot.meta, 'stamp', whole(stamp))
      reader = slot.consumer .. '#' .. whole(stamp)
    end
    more, own = read_new(slot, reader, room, piece, bound, largest, out, totals)
  end
  if out.work > 0 then
    redeliver(limit - out.number)
  end
end
if slot.taken then
  note_taken(slot, saved[6], stamp)
end
drop_names(slot)
if not pass.at and out.number > 0 then
  pass.at = now_ms + lease_ms
end
if pass.at and (whole(pass.at) ~= saved[1] or pass.cursor ~= saved[2] or whole(pass.start) ~= saved[3]
    or whole(pass.first) ~= saved[4]) then
  redis.call('HSET', slot.meta, 'scan_at', whole(pass.at), 'scan_cursor', pass.cursor, 'scan_start', whole(pass.start),
    'scan_first', whole(pass.first))
elseif not pass.at and saved[1] then
  redis.call('HDEL', slot.meta, 'scan_at')
end
if bound and out.largest > bound then -- sent by a release that does not keep the size
  redis.call('HSET', meta, 'largest', out.largest)
end
write_totals(slot.meta, totals)
if limit == 0 and oldest.err then
  redis.call('XGROUP', 'DESTROY', slot.store, slot.group)
end
if limit == 0 and back > 0 then
  hint(publish, wake, '0')
end

local due = 0
if more then
  due = now_ms
elseif busy_until > 0 then
  due = busy_until
elseif not paused then
  local first = waits and redis.call('ZRANGE', slot.retry, 0, 0, 'WITHSCORES')[2]
  due = first and math.max(now_ms, tonumber(first)) or 0
  if pass.at then
    local scan_at = math.max(now_ms, pass.at)
    due = due == 0 and scan_at or math.min(due, scan_at)
  end
end
return { whole(now_ms), whole(due), whole(swept), stale, out.flat, lost, out.ids, out.contents, out.tail, unmatched,
  whole(stamp), whole(stamp > 0 and own or 0) }
