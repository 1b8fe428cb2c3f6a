-- Claim due messages of one slot, after settling the previous ones and sweeping what nobody holds any more.
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
-- KEYS[10]  born       ZSET  content -> time of its last send, ms; only given for PRIORITY with a time to live
-- ARGV[1]   epoch          whole number; 0 without ZooKeeper
-- ARGV[2]   ensemble       identity of the ZooKeeper ensemble; empty without
-- ARGV[3]   lease_s        seconds
-- ARGV[4]   max_retries    0 to 999
-- ARGV[5]   order          `high`: highest score first; `low`: lowest, and only those due
-- ARGV[6]   limit          most messages to claim, 0 to 1,000; 0 settles and sweeps only
-- ARGV[7]   start          rank to search from: 0, or `resume` of the last claim
-- ARGV[8]   sweep_limit    most leases, and most retries, to sweep
-- ARGV[9]   max_dead_age   ms
-- ARGV[10]  max_dead       most dead in this slot
-- ARGV[11..] nacks and acks to settle first: see settle_nacks and settle_acks; then whole claims to ack: their number,
--   and of each the claim score, how many it holds, and the content of one: see settle_whole; then, only where the
--   topic has one, the time to live in ms
-- Returns: { now_ms, next_due_ms, resume, swept, stale contents, { content, store score, ... }, { body or nil, ... },
--   claim scores of whole claims that must be acked by their contents }; the table of bodies is empty when no message
--   of the slot has one. No message due: empty tables.
-- Errors: RMQ_FENCED stored_epoch, RMQ_ENSEMBLE stored_ensemble; nothing was written
-- Complexity: O((limit + settled + swept) log N)
-- Notes: prepare is written before store is trimmed. Not to be repeated after a lost reply: the lease settles it.
-- @include count
-- @include write_totals
-- @include read_clock
-- @include check_fence
-- @include begin_write
-- @include measure
-- @include record_failure
-- @include bury
-- @include roll_back
-- @include drop_bodies
-- @include settle_nacks
-- @include settle_acks
-- @include settle_whole
-- @include sweep
-- @include forget_unused
-- @include expire
-- @include trim_dead
-- @include take_fresh
-- @include take
-- @include next_due
-- @include whole

local slot = {
  store = KEYS[1], prepare = KEYS[2], retry = KEYS[3], dead = KEYS[4], body = KEYS[5], meta = KEYS[6],
  error = KEYS[7], reason = KEYS[8], dead_body = KEYS[9], born = KEYS[10],
}
local epoch, ensemble, lease_s, max_retries = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local highest_first, limit, start = ARGV[5] == 'high', tonumber(ARGV[6]), tonumber(ARGV[7])
local sweep_limit, max_dead_age, max_dead = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])

local now_ms, now_s = read_clock()
local refusal, newer, paused = check_fence(slot.meta, epoch, ensemble)
if refusal then
  return refusal
end
local sizes = measure(slot)
if slot.born then
  redis.call('ZCARD', slot.born)
end

local totals, stale, unmatched = {}, {}, {}
begin_write(slot, newer, epoch, ensemble)
local at = settle_nacks(slot, 11, now_ms, max_retries, totals, stale)
at = settle_acks(slot, at, totals, stale)
local plain = sizes.body == 0 and sizes.error == 0
for i = at + 1, at + 3 * tonumber(ARGV[at]), 3 do
  if not settle_whole(slot, ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], now_s, lease_s, plain, totals) then
    unmatched[#unmatched + 1] = ARGV[i]
  end
end
local swept, more = sweep(slot, now_ms, now_s, lease_s, max_retries, sweep_limit, totals)
local ttl_ms, more_outlived = ARGV[at + 3 * tonumber(ARGV[at]) + 1], false
if ttl_ms then
  start, more_outlived = expire(slot, start, now_ms, tonumber(ttl_ms), max_retries, sweep_limit, totals)
end
trim_dead(slot, now_ms, max_dead_age, max_dead, totals)

local items, resume, searched = {}, 0, false
if not paused and not more_outlived then
  local fresh, passed, ended
  if start == 0 then
    fresh, passed, ended = take_fresh(slot, highest_first, limit, now_ms, now_s, max_retries, totals)
  end
  items, searched = fresh or items, ended
  local wanted, from = limit - #items / 2, passed or start
  if wanted > 0 and not ended then
    local others
    others, resume, searched = take(slot, highest_first, wanted, from, now_ms, now_s, max_retries, totals)
    for i = 1, #others do
      items[#items + 1] = others[i]
    end
  end
end
write_totals(slot.meta, totals)

local due = now_ms
if not more and not more_outlived and resume == 0 then
  local backlog = paused and 'none' or searched and 'later' or 'all'
  due = next_due(slot, highest_first, backlog, now_ms, lease_s)
end
local bodies = {}
if #items > 0 and (slot.born or redis.call('HLEN', slot.body) > 0) then
  local names = {}
  for i = 1, #items, 2 do
    names[#names + 1] = items[i]
  end
  bodies = redis.call('HMGET', slot.body, unpack(names))
  if slot.born then
    redis.call('ZREM', slot.born, unpack(names))
  end
end
return { whole(now_ms), whole(due), whole(resume), whole(swept), stale, items, bodies, unmatched }
