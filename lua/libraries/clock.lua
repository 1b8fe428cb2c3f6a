-- The clock of a slot, and the stamps of its claims: where a lease begins and ends. A claim or a renewal has a stamp,
-- ms: the larger of Redis' time plus the clock's lead and the last stamp plus 1. A claim score is the stamp x 1,000
-- plus the retries left. The lease is over when the longest lease in force has passed since the stamp, by the slot's
-- clock, which is Redis' time plus a skew. The next claim that sweeps ends it (find_expired, called by sweep in claims);
-- until then an ack or a renewal still counts. lease_end only says when that can be, by Redis' time. Deliveries of a
-- group have no stamp: see scan_pending in stream_claims. meta keeps `stamp` and `lease`. Invariant: stamps only grow,
-- and no lease ends early when Redis' clock is set back.
-- @include redis

-- Redis' time, not a client's: epoch milliseconds, and the whole second.
-- Before effects replication became the only way, a script had to ask for it before it read the time and then wrote.
local function read_clock()
  if redis.replicate_commands then
    redis.replicate_commands()
  end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000), tonumber(time[1])
end

-- The clock by which the leases of a slot run: Redis' time plus `skew`, by which Redis' clock was set back. So it never
-- goes back, and the stamps of claims can grow for ever. `stamp` and `lease` are those fields of meta, see
-- docs/internals/semantics.md. Returns a table: `now`, `skew`, `lease_ms` (longest in force), `last` (the last stamp,
-- nil where none is known), `seen` (Redis' time then), `lead` (how far new stamps run ahead of Redis' time, at least),
-- `mark` (first stamp of that lead), `own_ms`; and `odd` where not all is as it mostly is: then also `lease` (what the
-- next claim notes as lease, nil to leave it), `till` (until when a lease that not all use is in force), `changed`
-- (Redis' clock was set back, or the skew is another: to be written).
local function read_slot_clock(stamp, lease, now_ms, lease_ms)
  local last = tonumber(stamp)
  local clock = {
    last = last, seen = last or 0, lead = 0, skew = 0, mark = 0, own_ms = lease_ms, lease_ms = lease_ms, now = now_ms,
  }
  if last and last <= now_ms and lease == whole(lease_ms) then
    return clock
  end
  clock.odd = true
  if stamp and not last then
    local seen, lead, skew, mark
    last, seen, lead, skew, mark = string.match(stamp, '^(%d+) (%d+) ?(%d*) ?(%d*) ?(%d*)$')
    clock.last, clock.seen, clock.lead = tonumber(last or ''), tonumber(seen or 0), tonumber(lead or '') or 0
    clock.skew, clock.mark = tonumber(skew or '') or 0, tonumber(mark or '') or 0
  end
  local highest = math.max(clock.last or 0, clock.seen, clock.mark, now_ms + clock.lead)
  if not (clock.last and clock.last >= 0 and highest < 9e12 and clock.skew <= clock.lead) then
    clock.last, clock.seen, clock.lead, clock.skew, clock.mark = nil, 0, 0, 0, 0 -- none, or none of a script's
  end
  if now_ms < clock.seen then
    local back = clock.seen - now_ms
    clock.lead, clock.skew, clock.changed = clock.lead + back, clock.skew + back, true
  end
  clock.now = now_ms + clock.skew
  if lease ~= whole(lease_ms) then
    local longest, till = string.match(lease or '', '^(%d+) ?(%d*)$')
    longest, till = tonumber(longest or 0), tonumber(till or '')
    if longest > 86400000 or (till or 0) > clock.now + 172800000 then -- no topic has such a lease
      longest, till = 0, nil
    end
    clock.lease = whole(lease_ms)
    if longest == lease_ms then
      clock.lease, clock.till = nil, till
    elseif longest > lease_ms then
      till = till or (clock.last or clock.now) + longest
      if clock.now <= till then
        clock.lease_ms, clock.lease = longest, whole(longest) .. ' ' .. whole(till)
      end
    end
  end
  return clock
end

-- Lets the skew of a slot's clock follow its lead once no lease can end early by that: all that is held has a stamp
-- of the lead, or nothing is held, where both shrink as far as stamps still grow. `slot.oldest`: lowest claim score,
-- or false.
local function settle_clock(slot, clock, now_ms)
  if not slot.oldest then
    local lead = math.max(0, (clock.last or 0) + 1 - now_ms)
    if clock.lead > lead or clock.skew ~= clock.lead then
      clock.lead, clock.skew, clock.changed = math.min(clock.lead, lead), math.min(clock.lead, lead), true
    end
    if clock.lease_ms > clock.own_ms then
      clock.lease_ms, clock.lease, clock.till = clock.own_ms, whole(clock.own_ms), nil
    end
  elseif clock.lead ~= clock.skew and slot.oldest >= clock.mark * 1000 then
    clock.skew, clock.changed = clock.lead, true
  end
  clock.now = now_ms + clock.skew
end

-- The stamp of a claim or a renewal: Redis' time in ms plus the clock's lead, or the last one plus 1, so that no two
-- in a slot are alike. `slot.unheld`: nothing is in prepare, as far as the caller knows. Where more than one is drawn
-- in a millisecond for long, the lead follows; the skew only when nothing is held from before, since leases may not
-- end early.
local function next_stamp(slot, clock, now_ms)
  if not clock.last then -- the first claim here, or meta was deleted
    local highest = not slot.unheld and tonumber(redis.call('ZREVRANGE', slot.prepare, 0, 0, 'WITHSCORES')[2]) or 0
    clock.last = highest < (now_ms + 86400000) * 1000 and math.max(0, math.floor(highest / 1000)) or 0
  end
  local stamp = math.max(now_ms + clock.lead, clock.last + 1)
  local ahead = stamp - now_ms
  if ahead > clock.lead + 1000 then
    if slot.unheld then
      clock.lead, clock.skew = ahead, ahead
    elseif clock.lead == clock.skew then
      clock.lead, clock.mark = ahead, stamp
    end
  end
  return stamp
end

-- Writes down that a stamp was used; or, with none, that the clock alone has changed. Mostly the stamp is Redis' time
-- and says all. Else `stamp` is the last one and Redis' time, and where they are not 0 the lead, the skew and the mark.
-- `others`: fields of meta and their values, which are written by the same command.
local function note_stamp(slot, clock, stamp, now_ms, others)
  others = others or {}
  if stamp == now_ms and not clock.odd then
    redis.call('HSET', slot.meta, 'stamp', whole(stamp), unpack(others))
    return
  end
  local last = stamp or clock.last or now_ms
  local text = whole(last)
  if clock.lead > 0 or clock.skew > 0 then
    text = table.concat({ text, whole(now_ms), whole(clock.lead), whole(clock.skew), whole(clock.mark) }, ' ')
  elseif last ~= now_ms then
    text = text .. ' ' .. whole(now_ms)
  end
  if stamp and clock.till and clock.till < stamp + clock.own_ms then
    clock.lease = whole(clock.own_ms) .. ' ' .. whole(stamp + 2 * clock.own_ms)
  end
  if stamp and clock.lease then
    redis.call('HSET', slot.meta, 'stamp', text, 'lease', clock.lease, unpack(others))
  else
    redis.call('HSET', slot.meta, 'stamp', text, unpack(others))
  end
  clock.changed = false
end

-- The highest score that a claim can have: the slot's clock or its last stamp, and a day, the longest lease, beside.
local function highest_claim(clock)
  return (math.max(clock.now, clock.last or 0) + 86400000) * 1000
end

-- When the lease of a claim score is over, by Redis' clock: epoch ms. What no claim can have written is over now.
local function lease_end(score, clock, now_ms)
  return score > highest_claim(clock) and now_ms or math.floor(score / 1000) + clock.lease_ms + 1 - clock.skew
end

-- Up to `limit` claims whose lease is over, oldest first: contents and claim scores, alternating. A score more than a
-- day, the longest lease, above every stamp was written by no claim: it is over. It is looked for once a minute, and
-- where nothing else is held. Sets `slot.oldest` to nil where it finds some.
local function find_expired(slot, clock, now_ms, limit)
  local expired = {}
  local function find(from, to)
    local room = limit - #expired / 2
    local found = redis.call('ZRANGEBYSCORE', slot.prepare, from, to, 'WITHSCORES', 'LIMIT', 0, room)
    for i = 1, #found do
      expired[#expired + 1] = found[i]
    end
  end
  local before = (clock.now - clock.lease_ms) * 1000
  if slot.oldest < before then
    find('-inf', '(' .. whole(before))
  end
  local top = highest_claim(clock)
  if slot.oldest > top or math.floor(clock.seen / 60000) ~= math.floor(now_ms / 60000) then
    find('(' .. whole(top), '+inf')
  end
  slot.oldest = #expired == 0 and slot.oldest or nil
  return expired
end
