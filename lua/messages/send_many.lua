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
-- Returns: { now_ms, per slot the reply of `send_priority`, or the text of the error that it met }; fixed times that
--   have passed are refused as by `send_fixed_time` with `+`
-- Errors: OOM at maxmemory, and a server that takes no writes: nothing was written; a server that cannot write its AOF
-- Complexity: O(n log N)
-- Notes: each slot is sent to as by a call of its own: atomic, and safe to repeat as that is.
-- @include whole
-- @include read_clock
-- @include send_ahead
-- @include age_messages

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
  if kind == 'FIXED_TIME' then
    return send_ahead(slot, publish, max_backlog, detailed, number, messages, 1, lowest, now_ms, true)
  end
  return send_batch(slot, publish, max_backlog, detailed, number, messages, 1, true, whole(lowest), now_ms)
end

-- Whether an error is no slot's own: the first write of all was refused, or the AOF fails, which Redis 6.2 may say
-- between two writes.
local function is_of_server(text, written)
  if string.find(text, 'MISCONF Errors writing to the AOF file', 1, true) then
    return true
  end
  return not written and (string.find(text, 'OOM command', 1, true) or string.find(text, 'READONLY ', 1, true)
    or string.find(text, 'NOREPLICAS ', 1, true) or string.find(text, 'MISCONF ', 1, true))
end

local replies, at, written = { now_ms }, 8, false
for base = 0, #KEYS - 5, 5 do
  local slot = {
    store = KEYS[base + 1], prepare = KEYS[base + 2], body = KEYS[base + 3], meta = KEYS[base + 4],
    wake = KEYS[base + 5],
  }
  local last = at + tonumber(ARGV[at])
  local done, reply = pcall(send_to, slot, { unpack(ARGV, at + 2, last) }, tonumber(ARGV[at + 1]))
  local text = type(reply) == 'table' and reply.err or not done and tostring(reply)
  if text and not done and is_of_server(text, written) then
    error(reply, 0)
  end
  written = written or not text
  replies[#replies + 1] = text or reply
  at = last + 1
end
return replies
