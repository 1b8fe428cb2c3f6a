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
