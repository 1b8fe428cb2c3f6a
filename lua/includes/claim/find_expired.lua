-- Up to `limit` claims whose lease is over, oldest first: contents and claim scores, alternating. A score more than a
-- day, the longest lease, above every stamp was written by no claim: it is over. It is looked for once a minute, and
-- where nothing else is held. Sets `slot.oldest` to nil where it finds some.
-- @include whole
-- @include highest_claim
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
