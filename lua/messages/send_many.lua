-- Send to several slots of a topic at once, a few messages to each: for servers where one script may touch them all.
--
-- KEYS[1..] slots  of each slot those of `send_priority`, in its order
-- ARGV[1]   publish      command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[2]   max_backlog  most messages in a slot's store; 0 for no bound
-- ARGV[3]   detailed     '1': say per message whether it was new
-- ARGV[4]   kind         `PRIORITY`, `RANGE_MERGE` or `FIXED_TIME`
-- ARGV[5]   scale        PRIORITY: of the scores, see aged; '0': scores are priorities. Else '0'
-- ARGV[6]   unit_ms      of the ages; '0' with scale 0
-- ARGV[7]   mark         see `send_aged`; '-1' with scale 0
-- ARGV[8..] sends  of each slot how many values follow, and how many messages; of each message priority, time range in
--   ms or fixed time in epoch ms, and content; then index (from 1) and body of those that have one
-- Returns: { now_ms, per slot the reply of `send_priority`, or the text of its error: RMQ_PAST, RMQ_FULL or WRONGTYPE }
-- Errors: OOM at maxmemory; a server that takes no writes; nothing was written
-- Complexity: O(n log N)
-- Notes: each slot is sent to as by a call of its own: atomic, and safe to repeat as that is.
-- @include whole
-- @include read_clock
-- @include send_batch
-- @include age_messages
-- @include reply_of

local publish, max_backlog, detailed, kind = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', ARGV[4]
local scale, unit_ms = tonumber(ARGV[5]), tonumber(ARGV[6])
local made = ARGV[7] ~= '-1' and tonumber(ARGV[7]) or nil
local now_ms = read_clock()

-- Makes due times of time ranges, or takes fixed times; returns the earliest as text.
local function due_times(messages, number)
  local lowest = math.huge
  for i = 1, 2 * number - 1, 2 do
    local due_ms = tonumber(messages[i])
    if kind == 'RANGE_MERGE' then
      due_ms = now_ms + due_ms
      messages[i] = whole(due_ms)
    end
    lowest = math.min(lowest, due_ms)
  end
  return lowest
end

local function send_to(slot, messages, number)
  if kind == 'PRIORITY' then
    if scale > 0 then
      age_messages(slot, scale, unit_ms, now_ms, messages, 1, number, made)
    end
    return send_batch(slot, publish, max_backlog, detailed, number, messages, 1, false, '0', 0)
  end
  local lowest = due_times(messages, number)
  if kind == 'FIXED_TIME' and lowest <= now_ms then
    return redis.error_reply('RMQ_PAST ' .. whole(now_ms) .. ' ' .. whole(lowest))
  end
  return send_batch(slot, publish, max_backlog, detailed, number, messages, 1, kind == 'RANGE_MERGE', whole(lowest),
    now_ms)
end

local replies, at, written = { now_ms }, 8, false
for base = 0, #KEYS - 5, 5 do
  local slot = {
    store = KEYS[base + 1], prepare = KEYS[base + 2], body = KEYS[base + 3], meta = KEYS[base + 4],
    wake = KEYS[base + 5],
  }
  local last = at + tonumber(ARGV[at])
  local reply = reply_of(send_to, slot, { unpack(ARGV, at + 2, last) }, tonumber(ARGV[at + 1]))
  if type(reply) == 'table' then
    written = true
  elseif not (written or string.find(reply, '^RMQ_') or string.find(reply, 'WRONGTYPE', 1, true)) then
    return redis.error_reply(reply) -- the first write of all was refused
  end
  replies[#replies + 1] = reply
  at = last + 1
end
return replies
