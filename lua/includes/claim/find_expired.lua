-- Up to `limit` claims whose lease is over, oldest first: contents and claim scores, alternating. Scores below 10^14
-- are of a release that stamped claims with whole seconds: they go before all others and end by its rule, in the
-- second after their lease. A score more than a day, the longest lease, above every stamp was written by no claim: it
-- is over. It is looked for once a minute, and where nothing else is held. Sets `slot.oldest` to nil where it finds
-- some.
-- @include whole
-- @include highest_claim
local function find_expired(slot, clock, now_ms, now_s, limit)
  local first, expired = slot.oldest, {}
  local function find(from, to)
    local room = limit - #expired / 2
    local found = redis.call('ZRANGEBYSCORE', slot.prepare, from, to, 'WITHSCORES', 'LIMIT', 0, room)
    for i = 1, #found do
      expired[#expired + 1] = found[i]
    end
  end
  if first < 1e14 then
    local before = (now_s - math.ceil(clock.lease_ms / 1000)) * 1000
    if first < before then
      find('-inf', '(' .. whole(before))
    end
    first = tonumber(redis.call('ZRANGEBYSCORE', slot.prepare, '1e14', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]) or 0
  end
  local before = (clock.now - clock.lease_ms) * 1000
  if first >= 1e14 and first < before then
    find('1e14', '(' .. whole(before))
  end
  local top = highest_claim(clock)
  if first > top or math.floor(clock.seen / 60000) ~= math.floor(now_ms / 60000) then
    find('(' .. whole(top), '+inf')
  end
  slot.oldest = #expired == 0 and slot.oldest or nil
  return expired
end
