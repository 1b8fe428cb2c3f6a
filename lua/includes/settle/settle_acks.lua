-- Acks: ARGV[at] groups, each a claim score, a number, and so many contents. Compare-and-set on the claim score: the
-- others go into `stale` and nothing changes for them. `bodies`, `errors`: how many the slot had before it was settled.
-- Returns the position after the last group.
-- @include count
local function settle_acks(slot, at, bodies, errors, totals, stale)
  local groups = tonumber(ARGV[at])
  at = at + 1
  if groups == 0 then
    return at
  end
  -- @include drop_bodies
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
        if errors > 0 then
          redis.call('HDEL', slot.error, unpack(mine))
        end
        if slot.held then
          redis.call('HDEL', slot.held, unpack(mine))
        elseif bodies > 0 then
          drop_bodies(slot, mine)
        end
      end
    end
    at = last + 1
  end
  return at
end
