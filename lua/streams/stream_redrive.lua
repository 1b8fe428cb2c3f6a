-- Deliver dead entries of one slot again, to the group in which they died and to no other.
--
-- KEYS[1]  store      STREAM
-- KEYS[2]  meta       HASH  totals
-- KEYS[3]  group      HASH  epoch, ensemble, paused, state of the pass over the pending list, totals
-- KEYS[4]  retry      ZSET  padded id -> due ms
-- KEYS[5]  dead       ZSET  id -> time of death, ms
-- KEYS[6]  reason     HASH  id -> why it died, JSON
-- KEYS[7]  dead_body  HASH  id -> fields of the dead, packed
-- KEYS[8]  wake       channel
-- ARGV[1]  group    its name
-- ARGV[2]  publish  command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[3..] ids  at most 1,000
-- Returns: per id `done`, `absent`, or '' where it stays dead: it was trimmed away, and has more fields than a copy can
--   have. Fewer than were named where those before have 4 MiB: the others were not looked at
-- Errors: OOM at maxmemory; nothing was written
-- Complexity: O(n log N)
-- Notes: atomic; safe to repeat. An entry that is still in the stream goes back into the group's pending list as it is;
--   of one that was trimmed away a copy is appended, marked with the group: the others pass over it.
-- @include fence, totals, redis, stream_ids

local store, meta, group, retry, dead, reason, dead_body = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local wake = KEYS[8]
local name, publish = ARGV[1], ARGV[2]

redis.call('XLEN', store)
check_types({ retry, dead }, { meta, group, reason, dead_body })

local sent, totals, answers, left_bytes = {}, {}, {}, 4194304
for i = 3, #ARGV do
  if left_bytes <= 0 then
    break
  end
  local id, answer = ARGV[i], 'absent'
  local found = redis.call('ZSCORE', dead, id)
  if found then
    answer = 'done'
    local packed = redis.call('HGET', dead_body, id)
    left_bytes = left_bytes - (packed and #packed or 0)
    if redis.call('XRANGE', store, id, id, 'COUNT', 1)[1] then
      redis.call('ZADD', retry, '0', padded_id(id))
      redis.call('XCLAIM', store, name, '(waiting)', '0', id, 'IDLE', '0', 'RETRYCOUNT', '0', 'FORCE', 'JUSTID')
      tally(totals, 'redriven', 1)
    elseif packed then
      local fields = cmsgpack.unpack(packed)
      if fields[1] ~= 'rmq:group' then
        table.insert(fields, 1, name)
        table.insert(fields, 1, 'rmq:group')
      end
      answer = #fields <= 7900 and 'done' or '' -- `unpack` has room for 8,000; what RMQ sends has up to 1,000
      if answer == 'done' then
        redis.call('XADD', store, '*', unpack(fields))
        tally(sent, 'copied', 1)
        tally(totals, 'resent', 1)
      end
    else
      answer = 'absent' -- nothing is left of it: a redrive of all would meet it again and again
    end
    if answer ~= '' then
      redis.call('ZREM', dead, id)
      redis.call('HDEL', reason, id)
      redis.call('HDEL', dead_body, id)
    end
  end
  answers[#answers + 1] = answer
end
if not next(sent) and not next(totals) then
  replicate(meta)
end
write_totals(meta, sent)
write_totals(group, totals)
hint(publish, wake, '0')
return answers
