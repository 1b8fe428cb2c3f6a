-- Give messages of one slot another due time or priority by content, be they in store or waiting for a retry.
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
-- ARGV[1]  kind     `after`, `at` or `priority`: see new_score
-- ARGV[2]  value    ms from now, epoch ms, or priority
-- ARGV[3]  scale    PRIORITY, oldest first: of the scores, see aged; else 1
-- ARGV[4]  unit_ms  PRIORITY, oldest first: of the ages; else 1
-- ARGV[5]  publish  command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[6]  actor    who, for the audit; empty for no line
-- ARGV[7]  action   what it is called there
-- ARGV[8..] contents  at most 256
-- Returns: per content `done`, `in_flight` (only there: not touched), or `absent`. Fewer than were named
--   where those before have used up what a call may fold: the others were not looked at
-- Errors: RMQ_PAST now_ms; nothing was written
-- Complexity: O(n log N)
-- Notes: atomic. Safe to repeat. A rescheduled message is fresh: it has all its retries again, and its time to live
--   begins where it had none. With another priority it keeps its own age.
-- @include clock, fence, totals, redis, scores

local store, prepare, retry, meta, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local audit, slot = KEYS[6], with_keys({ meta = KEYS[4] }, { KEYS[7], KEYS[8], KEYS[9] })
local born = slot.born
local kind, value, scale, unit_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local publish, actor, action = ARGV[5], ARGV[6], ARGV[7]

local now_ms = read_clock()
local score, refusal = new_score(kind, value, now_ms, scale, unit_ms)
if not score then
  return refusal
end
check_types({ store, prepare, retry, born }, { meta, slot.held, slot.body })
redis.call('XLEN', audit)

local totals, answers, left_bytes = {}, {}, 4194304
replicate(meta)
for i = 8, #ARGV do
  if left_bytes <= 0 then
    break
  end
  local content = ARGV[i]
  local stored, waiting = redis.call('ZSCORE', store, content), redis.call('ZSCORE', retry, content)
  if stored or waiting then
    local own = stored and scale > 1 and with_own_age(tonumber(stored), score, scale) or score
    redis.call('ZADD', store, whole(own), content)
    if born then
      redis.call('ZADD', born, 'NX', whole(now_ms), content)
    end
    if waiting and slot.held then
      -- @include merge_fold
      left_bytes = left_bytes - fold_back(slot, content, stored)
    end
    if waiting then
      redis.call('ZREM', retry, content)
    end
    if stored and waiting then
      tally(totals, 'merged', 1)
    end
    answers[#answers + 1] = 'done'
  else
    answers[#answers + 1] = redis.call('ZSCORE', prepare, content) and 'in_flight' or 'absent'
  end
  note(audit, actor, action, content, kind .. ' ' .. whole(value), answers[#answers])
end
write_totals(meta, totals)
hint(publish, wake, kind == 'priority' and '0' or whole(score))
return answers
