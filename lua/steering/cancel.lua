-- Take messages of one slot out of the backlog by content. What is in a handler's hands is left alone.
--
-- KEYS[1]  store    ZSET  content -> score
-- KEYS[2]  prepare  ZSET  content -> claim score
-- KEYS[3]  retry    ZSET  content -> retry score
-- KEYS[4]  body     HASH  content -> body
-- KEYS[5]  meta     HASH  totals
-- KEYS[6]  error    HASH  content -> last failure, JSON
-- KEYS[7]  audit    STREAM  who steered what
-- KEYS[8]  born?    ZSET  content -> time of its last send, ms; only for PRIORITY with a time to live
-- KEYS[9]  held?    HASH  content -> record of what is in flight or waits; only where the topic merges
-- ARGV[1]  actor  who, for the audit; empty for no line
-- ARGV[2..] contents  at most 256
-- Returns: per content `done`, `in_flight` (only there), or `absent`
-- Errors: none of its own
-- Complexity: O(n log N)
-- Notes: atomic. Safe to repeat: a second time they are absent.
-- @include fence, totals, redis

local slot = with_keys({
  store = KEYS[1], prepare = KEYS[2], retry = KEYS[3], body = KEYS[4], meta = KEYS[5], error = KEYS[6],
}, { KEYS[8], KEYS[9] })
local audit, actor = KEYS[7], ARGV[1]
local born = slot.born

check_types({ slot.store, slot.prepare, slot.retry, born }, { slot.body, slot.meta, slot.error, slot.held })
redis.call('XLEN', audit)
replicate(slot.meta)

local totals, answers = {}, {}
for i = 1, #ARGV - 1 do
  local content = ARGV[i + 1]
  local waited = redis.call('ZREM', slot.retry, content)
  local removed = redis.call('ZREM', slot.store, content) + waited
  if removed > 0 then
    tally(totals, 'cancelled', removed)
    if slot.held then
      redis.call('HDEL', slot.body, content)
      if waited > 0 then
        redis.call('HDEL', slot.held, content)
      end
    end
    if not redis.call('ZSCORE', slot.prepare, content) then
      redis.call('HDEL', slot.body, content)
      redis.call('HDEL', slot.error, content)
    end
    if born then
      redis.call('ZREM', born, content)
    end
    answers[i] = 'done'
  else
    answers[i] = redis.call('ZSCORE', slot.prepare, content) and 'in_flight' or 'absent'
  end
  note(audit, actor, 'cancel', content, '', answers[i])
end
write_totals(slot.meta, totals)
return answers
