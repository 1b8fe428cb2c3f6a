-- Nacks: ARGV[at] messages, each six values: content, claim score, verb, number, error type, error message. Verbs:
-- `retry` (number = delay in ms, 0 for at once), `spare` (as `retry`, but a retry uses up no retry, and the last one
-- does not die), `bury`, `release` (never begun: back as it was, number = its store score, no retry used up; a time to
-- live that `slot.born` keeps begins anew). Compare-and-set on the claim score.
-- The bodies that move along are taken off `slot.budget`; once that is used up, the rest is left as it is. Returns the
-- position after the last one, how many are due by it, and how many were looked at.
-- @include count
-- @include whole
local function settle_nacks(slot, at, now_ms, max_retries, totals, stale)
  local last = at + 6 * tonumber(ARGV[at])
  local back = 0
  if last == at then
    return last + 1, back, 0
  end
  -- @include roll_back
  -- @include bury
  -- @include left_of
  -- @include failure_of
  -- @include record_failure
  -- @include end_committed
  local budget, done = slot.budget, 0
  for i = at + 1, last, 6 do
    if budget.bytes <= 0 then
      break
    end
    done = done + 1
    local content, claim_score, verb, number = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
    if redis.call('ZSCORE', slot.prepare, content) ~= claim_score then
      stale[#stale + 1] = content
    elseif verb == 'release' and read_failure(redis.call('HGET', slot.error, content)).committed then
      end_committed(slot, content, totals)
    elseif verb == 'release' then
      local fresh = redis.call('ZADD', slot.store, 'NX', ARGV[i + 3], content) == 0
      if slot.held then
        -- @include fold_back
        budget.bytes = budget.bytes - fold_back(slot, content, fresh, now_ms)
      end
      if fresh then
        count(totals, 'merged', 1)
        keep_failure(slot, content)
      elseif slot.born then
        redis.call('ZADD', slot.born, string.format('%.0f', now_ms), content)
      end
      count(totals, 'released', 1)
      redis.call('ZREM', slot.prepare, content)
      back = back + 1
    else
      local left = left_of(tonumber(claim_score), max_retries)
      local failure = failure_of(slot, content, left == max_retries, now_ms, ARGV[i + 4], ARGV[i + 5], totals)
      if verb == 'bury' or (verb == 'retry' and left == 0) then
        budget.bytes = budget.bytes - bury(slot, content, failure, max_retries - left + 1, now_ms, totals)
      else
        record_failure(slot, content, failure)
        if verb == 'spare' then
          left = math.max(1, math.min(left + 1, max_retries))
        end
        local due_ms = number > 0 and now_ms + number or 0
        local cost, sooner = roll_back(slot, content, left, due_ms, now_ms, totals)
        budget.bytes = budget.bytes - cost
        back = back + ((number == 0 or sooner) and 1 or 0)
      end
    end
  end
  return last + 1, back, done
end
