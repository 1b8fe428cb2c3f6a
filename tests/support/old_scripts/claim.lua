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
-- Acks all `number` deliveries that were claimed with this score, naming but one of them, the witness. If it has this
-- score, and just so many have it, and their lease runs, so that nobody else can have taken one of them out of prepare,
-- then they are the ones. Where that cannot be told, or where failures or bodies have to go with them, nothing changes
-- and the answer is false: the caller then names them all.
local function settle_whole(slot, claim_score, number, witness, now_s, lease_s, plain, totals)
  local running = math.floor(tonumber(claim_score) / 1000) + lease_s >= now_s
  if not running or not plain or redis.call('ZSCORE', slot.prepare, witness) ~= claim_score then
    return false
  end
  if redis.call('ZCOUNT', slot.prepare, claim_score, claim_score) ~= number then
    return false
  end
  count(totals, 'acked', redis.call('ZREMRANGEBYSCORE', slot.prepare, claim_score, claim_score))
  return true
end
-- Rescues what nobody holds any more: expired leases go back or die, due retries go to store; oldest first, up to
-- `limit` of each. `slot.oldest` is the first claim score in prepare, false without; nil afterwards where it may be
-- another one now. Returns how many, and whether more may be waiting.
local function sweep(slot, now_ms, now_s, lease_s, max_retries, limit, totals)
  local from = (now_s - lease_s) * 1000
  local expired = {}
  if slot.oldest and slot.oldest < from then
    expired = redis.call('ZRANGEBYSCORE', slot.prepare, '-inf', '(' .. whole(from), 'WITHSCORES', 'LIMIT', 0, limit)
    slot.oldest = nil
  end
  slot.quiet = slot.quiet and #expired == 0
  for i = 1, #expired, 2 do
    local content, left = expired[i], tonumber(expired[i + 1]) % 1000
    local attempts = max_retries - left + 1
    record_failure(slot, content, left == max_retries, now_ms, 'LeaseExpired',
      'delivery ' .. attempts .. ' was neither acked nor nacked within its lease')
    if left == 0 then
      bury(slot, content, attempts, now_ms, totals)
    else
      roll_back(slot, content, left, 0, totals)
    end
  end
  local due = {}
  if not slot.quiet then
    local upto = whole(now_s * 1000 + 999)
    due = redis.call('ZRANGEBYSCORE', slot.retry, '-inf', upto, 'WITHSCORES', 'LIMIT', 0, limit)
  end
  for i = 1, #due, 2 do
    if redis.call('ZADD', slot.store, 'NX', tonumber(due[i + 1]) % 1000, due[i]) == 0 then
      count(totals, 'merged', 1)
      redis.call('HDEL', slot.error, due[i])
    end
    redis.call('ZREM', slot.retry, due[i])
  end
  if #expired > 0 then
    count(totals, 'expired', #expired / 2)
  end
  return (#expired + #due) / 2, #expired == 2 * limit or #due == 2 * limit
end
-- Deletes the body and the last failure of a content that has left store, unless it is in flight or waits for a retry.
local function forget_unused(slot, content)
  if not redis.call('ZSCORE', slot.prepare, content) and not redis.call('ZSCORE', slot.retry, content) then
    redis.call('HDEL', slot.body, content)
    redis.call('HDEL', slot.error, content)
  end
end
-- Buries what has outlived its time to live before it could be delivered: store -> dead, oldest first, up to `limit`.
-- Time topics: due more than ttl_ms ago; `slot.born` is nil. PRIORITY: sent so long ago, as `slot.born` tells, where
-- entries of what has left store meanwhile are dropped, too. What was delivered before is left to its retries. Returns
-- the rank `start` where the search goes on, 0 where ranks have moved, and whether more may have to die.
local function expire(slot, start, now_ms, ttl_ms, max_retries, limit, totals)
  local before = '(' .. string.format('%.0f', now_ms - ttl_ms)
  local old
  if slot.born then
    old = redis.call('ZRANGEBYSCORE', slot.born, '-inf', before, 'LIMIT', 0, limit)
  else
    old = redis.call('ZRANGEBYSCORE', slot.store, '(' .. max_retries, before, 'LIMIT', 0, limit)
  end
  local now = string.format('%.0f', now_ms)
  local reason = cjson.encode({
    first_ms = now, last_ms = now, type = 'Expired', attempts = 0,
    message = 'not delivered within its time to live of ' .. string.format('%.0f', ttl_ms) .. ' ms',
  })
  local expired = 0
  for _, content in ipairs(old) do
    local score = redis.call('ZSCORE', slot.store, content)
    if score and tonumber(score) > max_retries then
      if redis.call('ZADD', slot.dead, now, content) == 0 then
        count(totals, 'merged', 1)
      end
      redis.call('HSET', slot.reason, content, reason)
      local body = redis.call('HGET', slot.body, content)
      if body then
        redis.call('HSET', slot.dead_body, content, body)
      else
        redis.call('HDEL', slot.dead_body, content)
      end
      redis.call('ZREM', slot.store, content)
      forget_unused(slot, content)
      expired = expired + 1
    end
    if slot.born then
      redis.call('ZREM', slot.born, content)
    end
  end
  count(totals, 'ttl_expired', expired)
  return expired > 0 and 0 or start, #old == limit
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
-- The common case of `take`, at the server's lowest price: what is due was never rolled back, and nothing was claimed
-- in this slot in this second, so that one ZADD NX both claims and finds out whether something is in flight. Else only
-- `look` goes on: it finds that out before. Returns contents and store scores, alternating, how many entries were
-- passed over because they are in flight, and whether all that is due was seen; nothing at all, with nothing written,
-- where the case is another. `peek`: the first two entries of store, where they are known; if that is all that matters,
-- `slot.upcoming` then is the due time of the first one that is not due yet, false for none.
local function take_fresh(slot, highest_first, limit, now_ms, now_s, max_retries, totals, look, peek)
  if limit == 0 then
    return nil
  end
  local page
  local second = peek and peek[4]
  if peek and not (second and (highest_first or tonumber(second) <= now_ms)) then
    if peek[1] and (highest_first or tonumber(peek[2]) <= now_ms) then
      page, slot.upcoming = { peek[1], peek[2] }, second and tonumber(second) or false
    else
      page, slot.upcoming = {}, tonumber(peek[2]) or false
    end
  elseif highest_first then
    page = redis.call('ZREVRANGE', slot.store, 0, limit - 1, 'WITHSCORES')
  else
    local upto = string.format('%.0f', now_ms)
    page = redis.call('ZRANGEBYSCORE', slot.store, '-inf', upto, 'WITHSCORES', 'LIMIT', 0, limit)
  end
  local size = #page / 2
  if size == 0 then
    return page, 0, true
  end
  if tonumber(page[highest_first and 2 * size or 2]) <= max_retries then
    return nil
  end
  local fresh = string.format('%.0f', now_s * 1000 + max_retries)
  local unclear = not slot.unheld and redis.call('ZCOUNT', slot.prepare, fresh, fresh) > 0
  if unclear and not look then
    return nil
  end
  if unclear then
    local names = {}
    for i = 1, size do
      names[i] = page[2 * i - 1]
    end
    for _, held in ipairs(redis.call('ZMSCORE', slot.prepare, unpack(names))) do
      if held then
        return nil
      end
    end
  end
  local claims = {}
  for i = 1, 2 * size, 2 do
    claims[i] = fresh
    claims[i + 1] = page[i]
  end
  local items, taken = page, redis.call('ZADD', slot.prepare, 'NX', unpack(claims))
  local has_retries = not slot.quiet and redis.call('ZCARD', slot.retry) > 0
  if taken < size or has_retries then
    items = {}
    local names, mine = {}, {}
    for i = 1, size do
      names[i] = page[2 * i - 1]
    end
    local scores = redis.call('ZMSCORE', slot.prepare, unpack(names))
    for i = 1, size do
      if scores[i] == fresh then
        mine[#mine + 1] = names[i]
        items[#items + 1] = names[i]
        items[#items + 1] = page[2 * i]
      end
    end
    if #mine > 0 then
      count(totals, 'merged', redis.call('ZREM', slot.retry, unpack(mine)))
      redis.call('ZREM', slot.store, unpack(mine))
    end
  elseif highest_first then
    redis.call('ZREMRANGEBYRANK', slot.store, -size, -1)
  else
    redis.call('ZREMRANGEBYRANK', slot.store, 0, size - 1)
  end
  count(totals, 'delivered', taken)
  return items, size - taken, size < limit
end
-- Claims up to `limit` due messages: lowest due time first, or highest priority first. What is in prepare is
-- skipped: one content is never in two hands; the search goes on behind it, over up to 4,096 entries from rank
-- `start`. Returns contents and store scores (alternating), the rank where a bound ended the search (0 if none did),
-- and whether all that is due was seen.
local function take(slot, highest_first, limit, start, now_ms, now_s, max_retries, totals)
  local items, contents = {}, {}
  local in_flight = redis.call('ZCARD', slot.prepare) > 0
  local rank, skipped, ended = start, 0, false
  local upto = string.format('%.0f', now_ms)
  while #contents < limit and rank - start < 4096 do
    local size = math.min(skipped > 0 and 1000 or limit - #contents, 1000)
    local page
    if highest_first then
      page = redis.call('ZREVRANGE', slot.store, rank, rank + size - 1, 'WITHSCORES')
    else
      page = redis.call('ZRANGEBYSCORE', slot.store, '-inf', upto, 'WITHSCORES', 'LIMIT', rank, size)
    end
    local names = {}
    for i = 1, #page, 2 do
      names[#names + 1] = page[i]
    end
    local held = in_flight and #names > 0 and redis.call('ZMSCORE', slot.prepare, unpack(names))
    local seen = 0
    while seen < #names and #contents < limit do
      seen = seen + 1
      local i = seen
      rank = rank + 1
      if held and held[i] then
        skipped = skipped + 1
      else
        contents[#contents + 1] = names[i]
        items[#items + 1] = names[i]
        items[#items + 1] = page[2 * i]
      end
    end
    if #names < size and seen == #names then
      ended = true
      break
    end
  end
  local fresh = string.format('%.0f', now_s * 1000 + max_retries)
  local has_retries = not slot.quiet and redis.call('ZCARD', slot.retry) > 0
  for first = 1, #contents, 1000 do
    local last = math.min(first + 999, #contents)
    local claims = {}
    for i = first, last do
      local score = tonumber(items[2 * i])
      claims[#claims + 1] = score > max_retries and fresh or string.format('%.0f', now_s * 1000 + score - 1)
      claims[#claims + 1] = contents[i]
    end
    redis.call('ZADD', slot.prepare, unpack(claims))
    if has_retries then
      count(totals, 'merged', redis.call('ZREM', slot.retry, unpack(contents, first, last)))
    end
    if skipped > 0 or start > 0 then
      redis.call('ZREM', slot.store, unpack(contents, first, last))
    end
  end
  if #contents > 0 and skipped == 0 and start == 0 then
    if highest_first then
      redis.call('ZREMRANGEBYRANK', slot.store, -#contents, -1)
    else
      redis.call('ZREMRANGEBYRANK', slot.store, 0, #contents - 1)
    end
  end
  count(totals, 'delivered', #contents)
  return items, (ended or #contents == limit) and 0 or rank - #contents, ended
end
-- When a slot next has something to do, epoch ms, 0 for never: a message due, a retry due, a lease running out.
-- `backlog` says which messages in store count: `all`, `later` (all that are due now are in flight) or `none`. What the
-- caller knows it puts in `slot`: `upcoming` (the first due time that lies ahead), `oldest` (first claim score), false
-- for none; `claimed` (claim score of what it claimed itself).
local function next_due(slot, highest_first, backlog, now_ms, lease_s)
  local soonest = nil
  if backlog == 'later' and slot.upcoming ~= nil then
    soonest = not highest_first and slot.upcoming or nil
  elseif backlog ~= 'none' and not highest_first then
    local from = backlog == 'later' and '(' .. whole(now_ms) or '-inf'
    soonest = tonumber(redis.call('ZRANGEBYSCORE', slot.store, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
  elseif backlog == 'all' and redis.call('ZCARD', slot.store) > 0 then
    return now_ms
  end
  local retry = not slot.quiet and redis.call('ZRANGE', slot.retry, 0, 0, 'WITHSCORES')[2]
  if retry then
    local due = math.floor(tonumber(retry) / 1000) * 1000
    soonest = math.min(due, soonest or due)
  end
  local claim = slot.oldest or slot.claimed
  if slot.oldest == nil then
    claim = redis.call('ZRANGE', slot.prepare, 0, 0, 'WITHSCORES')[2]
  end
  if claim then
    local ends = (math.floor(tonumber(claim) / 1000) + lease_s + 1) * 1000
    soonest = math.min(ends, soonest or ends)
  end
  return soonest or 0
end
-- A claim from one slot: settles the previous ones, sweeps, and takes what is due. `rules` are the topic's; `turn` says
-- who claims how much from where, and that what it settles stands in ARGV from `at` to `last`. Returns the reply.
-- A slot without retries, dead, bodies and failures is `quiet`: what could only be found there is not looked for. Its
-- first two messages tell whether more than one is due, and when the next one will be; so `peek` mostly is all of store
-- that has to be read. `oldest` is the claim score whose lease ends first, false without claims. `rules.joined`: the
-- caller has written. Limit -1: a quiet slot is settled, no more; the reply says when its first message is due, since
-- that one may have been passed over by others as long as its twin was in flight.
local function claim_slot(slot, rules, turn, now_ms, now_s)
  local highest_first, limit, start, lease_s = rules.highest_first, turn.limit, turn.start, rules.lease_s
  local max_retries, sweep_limit = rules.max_retries, rules.sweep_limit
  local refusal, newer, paused = check_fence(slot.meta, turn.epoch, turn.ensemble)
  if refusal then
    return refusal
  end
  local settle_only = limit < 0 and ARGV[turn.at] == '0'
  limit = math.max(0, limit)
  local sizes = measure(slot, true)
  if slot.born then
    redis.call('ZCARD', slot.born)
  end
  slot.quiet = sizes.quiet and ARGV[turn.at] == '0'
  local peek, first_due = nil, 0
  if settle_only and slot.quiet then
    slot.oldest = false -- leases are left to the next claim
    first_due = next_due(slot, highest_first, paused and 'none' or 'all', now_ms, lease_s)
  elseif sizes.quiet then -- whatever becomes of it, store has been found to be what it should be
    peek = redis.call(highest_first and 'ZREVRANGE' or 'ZRANGE', slot.store, 0, 1, 'WITHSCORES')
  end

  local totals, stale, unmatched = {}, {}, {}
  if newer or not rules.joined then
    redis.call('ZCARD', slot.prepare)
    begin_write(slot, newer, turn.epoch, turn.ensemble)
  end
  local at = settle_nacks(slot, turn.at, now_ms, max_retries, totals, stale)
  at = settle_acks(slot, at, totals, stale)
  local plain = sizes.body == 0 and sizes.error == 0
  for i = at + 1, at + 3 * tonumber(ARGV[at]), 3 do
    if not settle_whole(slot, ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], now_s, lease_s, plain, totals) then
      unmatched[#unmatched + 1] = ARGV[i]
    end
  end
  at = at + 3 * tonumber(ARGV[at]) + 1
  if settle_only and slot.quiet then
    write_totals(slot.meta, totals)
    return { whole(now_ms), whole(first_due), '0', '0', stale, {}, {}, unmatched }
  end
  slot.oldest = tonumber(redis.call('ZRANGE', slot.prepare, 0, 0, 'WITHSCORES')[2]) or false
  slot.unheld = not slot.oldest
  local swept, more = sweep(slot, now_ms, now_s, lease_s, max_retries, sweep_limit, totals)
  local more_outlived = false
  if at <= turn.last then
    slot.quiet = false
    start, more_outlived = expire(slot, start, now_ms, tonumber(ARGV[at]), max_retries, sweep_limit, totals)
  end
  if not slot.quiet then
    trim_dead(slot, now_ms, rules.max_dead_age, rules.max_dead, totals)
  end

  local items, resume, searched = {}, 0, false
  if not paused and not more_outlived then
    local fresh, passed, ended
    if start == 0 then
      peek = slot.quiet and peek or nil -- else what it saw may have changed
      fresh, passed, ended = take_fresh(slot, highest_first, limit, now_ms, now_s, max_retries, totals, false, peek)
    end
    items, searched = fresh or items, ended or false
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
  slot.claimed = #items > 0 and now_s * 1000

  local due = now_ms
  if not more and not more_outlived and resume == 0 then
    local backlog = paused and 'none' or searched and 'later' or 'all'
    due = next_due(slot, highest_first, backlog, now_ms, lease_s)
  end
  local bodies = {}
  if #items > 0 and (slot.born or not slot.quiet and redis.call('HLEN', slot.body) > 0) then
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
end

local slot = {
  store = KEYS[1], prepare = KEYS[2], retry = KEYS[3], dead = KEYS[4], body = KEYS[5], meta = KEYS[6],
  error = KEYS[7], reason = KEYS[8], dead_body = KEYS[9], born = KEYS[10],
}
local turn = {
  epoch = ARGV[1], ensemble = ARGV[2], limit = tonumber(ARGV[6]), start = tonumber(ARGV[7]), at = 11, last = #ARGV,
}
local rules = {
  lease_s = tonumber(ARGV[3]), max_retries = tonumber(ARGV[4]), highest_first = ARGV[5] == 'high',
  sweep_limit = tonumber(ARGV[8]), max_dead_age = tonumber(ARGV[9]), max_dead = tonumber(ARGV[10]),
}

local now_ms, now_s = read_clock()
return claim_slot(slot, rules, turn, now_ms, now_s)
