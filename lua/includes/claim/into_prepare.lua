-- Puts `size` messages into prepare (`claims`: claim score and content, alternating), but for those that are in flight.
-- Nothing in prepare can have this stamp yet: so one ZADD NX both claims and finds out. Returns how many were put.
-- @include skiplist
local function into_prepare(slot, claims, size, stamp)
  local begun = begin_skiplist(slot.prepare, size, '0', string.format('%065.0f', stamp))
  local taken = redis.call('ZADD', slot.prepare, 'NX', unpack(claims))
  if begun then
    end_skiplist(slot.prepare, '0')
  end
  return taken
end

-- Where fewer were put than named: which of the contents have this claim score.
local function put_among(slot, names, claim_score)
  local mine, scores = {}, redis.call('ZMSCORE', slot.prepare, unpack(names))
  for i = 1, #names do
    if scores[i] == claim_score then
      mine[#mine + 1] = i
    end
  end
  return mine
end
