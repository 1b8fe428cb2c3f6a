-- Send dead messages of one slot again: dead -> store, as fresh ones with their bodies.
--
-- KEYS[1]  store      ZSET  content -> score
-- KEYS[2]  dead       ZSET  content -> time of death, ms
-- KEYS[3]  body       HASH  content -> body
-- KEYS[4]  meta       HASH  totals
-- KEYS[5]  reason     HASH  content -> why it died, JSON
-- KEYS[6]  dead_body  HASH  content -> body of the dead
-- KEYS[7]  wake       channel
-- KEYS[8]  audit      STREAM  who steered what
-- KEYS[9]  born?      ZSET  content -> time of its last send, ms; only for PRIORITY with a time to live
-- KEYS[10]  held?      HASH  content -> record in flight; only where the topic merges: the dead fold into fresh copies
-- ARGV[1]  kind       `after`, `at` or `priority`: see new_score
-- ARGV[2]  value      ms from now, epoch ms, or priority
-- ARGV[3]  scale      PRIORITY, oldest first: of the scores, see aged; else 1
-- ARGV[4]  unit_ms    PRIORITY, oldest first: of the ages; else 1
-- ARGV[5]  overwrite  '1': the redriven one replaces a fresh copy in store, but for its body, which is newer; '0': the
--   fresh copy stands
-- ARGV[6]  publish    command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[7]  actor      who, for the audit; empty for no line
-- ARGV[8]  dated      '1': each content is followed by the time of death, ms, without which it is not meant; else '0'
-- ARGV[9..] contents  at most 1,000, each with its time of death where `dated`
-- Returns: per message `done`, `merged` (with a fresh copy) or `absent` (not dead, or dead since another time). Fewer
--   than were asked for where those before have 4 MiB with their bodies, or cost as much to fold: the others were not
--   looked at
-- Errors: RMQ_PAST now_ms; OOM at maxmemory; nothing was written
-- Complexity: O(n log N)
-- Notes: atomic. Safe to repeat: a second time they are absent.
-- @include clock, fence, totals, redis, bodies, scores

local store, dead, body, meta, reason, dead_body, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local audit = KEYS[8]
local slot = with_keys({}, { KEYS[9], KEYS[10] })
local born = slot.born
local kind, value, scale, unit_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local overwrite, publish, actor, dated = ARGV[5] == '1', ARGV[6], ARGV[7], ARGV[8] == '1'

local function has_body(hash, content)
  local stored = redis.call('HGET', hash, content)
  return stored and not only_trace(stored, 1)
end

local now_ms = read_clock()
local score, refusal = new_score(kind, value, now_ms, scale, unit_ms)
if not score then
  return refusal
end
check_types({ store, born }, { body, meta, reason, dead_body })
redis.call('XLEN', audit)
local contents, died = {}, {}
for i = 9, #ARGV, dated and 2 or 1 do
  contents[#contents + 1] = ARGV[i]
  died[#contents] = dated and tonumber(ARGV[i + 1])
end

local none = true
for _, found in ipairs(#contents > 0 and redis.call('ZMSCORE', dead, unpack(contents)) or {}) do
  none = none and not found
end
if none then
  replicate(meta) -- a full Redis says, too, that there are none
end
local totals, answers, left_bytes, sooner = {}, {}, 4194304, false
for i, content in ipairs(contents) do
  if left_bytes <= 0 then
    break
  end
  left_bytes = left_bytes - #content
  local fresh, found = redis.call('ZSCORE', store, content), redis.call('ZSCORE', dead, content)
  if not found or (died[i] and died[i] ~= tonumber(found)) then
    answers[i] = 'absent'
  else
    answers[i] = fresh and 'merged' or 'done'
    tally(totals, fresh and 'merged' or 'redriven', 1)
    local payload = redis.call('HGET', dead_body, content)
    local cost = payload and #payload or 0
    if fresh and payload and slot.held then
      -- @include merge_record, merge_fold
      local older, newer = read_record(payload), read_record(redis.call('HGET', body, content))
      local folded = fold(older, newer)
      payload, cost = write_record(folded), fold_cost(older, newer)
      sooner = not overwrite and end_wait(store, content, folded, now_ms) or sooner
    end
    if not fresh or overwrite then
      local own = fresh and scale > 1 and with_own_age(tonumber(fresh), score, scale) or score
      redis.call('ZADD', store, whole(own), content)
      if born then
        redis.call('ZADD', born, whole(now_ms), content)
      end
    end
    if not fresh or slot.held or overwrite and payload and not has_body(body, content) then
      if payload then
        if #payload > 4096 then
          redis.call('HDEL', meta, 'body_bound') -- claims need not ask for sizes while no body is larger
        end
        redis.call('HSET', body, content, payload)
        left_bytes = left_bytes - cost
      elseif not fresh then
        redis.call('HDEL', body, content)
      end
    end
    redis.call('ZREM', dead, content)
    redis.call('HDEL', reason, content)
    redis.call('HDEL', dead_body, content)
  end
  note(audit, actor, 'redrive', content, '', answers[i])
end
write_totals(meta, totals)
if totals.redriven or totals.merged then
  hint(publish, wake, (sooner or kind == 'priority') and '0' or whole(score))
else
  replicate(meta)
end
return answers
