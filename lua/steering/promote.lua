-- Make messages of one slot due now; on PRIORITY, put them before all others of the slot.
--
-- KEYS[1]  store    ZSET  content -> score
-- KEYS[2]  prepare  ZSET  content -> claim score
-- KEYS[3]  retry    ZSET  content -> retry score
-- KEYS[4]  meta     HASH  totals
-- KEYS[5]  wake     channel
-- KEYS[6]  audit    STREAM  who steered what
-- KEYS[7]  born?    ZSET  content -> time of its last send, ms; only for PRIORITY with a time to live
-- KEYS[8]  held?    HASH  content -> record of what waits for a retry; only where the topic merges, like body
-- KEYS[9]  body?    HASH  content -> record
-- ARGV[1]  order        `high` for PRIORITY, else `low`
-- ARGV[2]  max_retries  0 to 999
-- ARGV[3]  scale        PRIORITY, oldest first: of the scores, see aged; else 1
-- ARGV[4]  publish      command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[5]  actor        who, for the audit; empty for no line
-- ARGV[6..] contents  at most 256
-- Returns: per content `done`, `in_flight` (only there: not touched), or `absent`. Fewer than were named
--   where those before have used up what a call may fold: the others were not looked at
-- Errors: none of its own
-- Complexity: O(n log N)
-- Notes: atomic; safe to repeat. What waits for a retry keeps the retries it has left; on PRIORITY it gets all of them,
--   and its time to live begins where it had none.
-- @include clock, fence, totals, redis, scores

local store, prepare, retry, meta, wake, audit = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local slot = with_keys({ meta = meta }, { KEYS[7], KEYS[8], KEYS[9] })
local born = slot.born
local highest_first, max_retries, scale = ARGV[1] == 'high', tonumber(ARGV[2]), tonumber(ARGV[3])
local publish, actor = ARGV[4], ARGV[5]

local now_ms = read_clock()
check_types({ store, prepare, retry, born }, { meta, slot.held, slot.body })
redis.call('XLEN', audit)

local totals, answers, left_bytes = {}, {}, 4194304
replicate(meta)
for i = 6, #ARGV do
  if left_bytes <= 0 then
    break
  end
  local content = ARGV[i]
  local stored, waiting = redis.call('ZSCORE', store, content), redis.call('ZSCORE', retry, content)
  local answer = 'done'
  if waiting and slot.held then
    -- @include merge_fold
    left_bytes = left_bytes - fold_back(slot, content, stored)
  end
  if not stored and not waiting then
    answer = redis.call('ZSCORE', prepare, content) and 'in_flight' or 'absent'
  elseif highest_first then
    local first = redis.call('ZREVRANGE', store, 0, 1, 'WITHSCORES')
    if first[1] ~= content or first[2] == first[4] or tonumber(first[2]) <= max_retries then
      local top, own = math.max(tonumber(first[2] or 0), max_retries), tonumber(stored or 0)
      local above = top - top % scale + scale + own % scale -- one priority above, with its own age
      if above > 9007199254740991 then -- then only every second whole number is a score
        above = top + (top < 9007199254740992 and 1 or 2)
      end
      redis.call('ZADD', store, whole(above), content)
      if born then
        redis.call('ZADD', born, 'NX', whole(now_ms), content)
      end
    end
    if waiting then
      redis.call('ZREM', retry, content)
      tally(totals, 'merged', stored and 1 or 0)
    end
  elseif stored then
    if tonumber(stored) > now_ms then
      redis.call('ZADD', store, whole(now_ms), content)
    end
    if waiting and slot.held then
      tally(totals, 'merged', redis.call('ZREM', retry, content))
    end
  else
    local left = left_of(tonumber(waiting), max_retries)
    redis.call('ZADD', store, whole(left > 0 and left or now_ms), content) -- none are left: due as one of its own
    redis.call('ZREM', retry, content)
  end
  answers[#answers + 1] = answer
  note(audit, actor, 'promote', content, '', answer)
end
write_totals(meta, totals)
hint(publish, wake, '0')
return answers
