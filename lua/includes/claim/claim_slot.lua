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
