-- Send messages to one slot of a topic, or to several slots at once: due after a time, at a time, or by priority.
--
-- KEYS[1..] slots  of each slot store, prepare, body, meta and wake; with limits also retry, error and born; last the
--   hash with the marks of a query of Spark, if a chunk is sent
-- ARGV[1]   publish      command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[2]   detailed     '1': say per message whether it was new; with `+` behind it: of several messages refuse only
--   those whose time has passed
-- ARGV[3]   unit         of the values: `after` (ms from now; what is in store stays as it is), `at` (epoch ms; below 0
--   a delay: ms from now, negated), `priority`; but for the first, the last send of a content in store decides
-- ARGV[4]   max_backlog  most messages in a slot's store; 0 for no bound
-- ARGV[5]   ages         PRIORITY, oldest first: scale and unit_ms, see aged, and the age mark with which scores were
--   made of the priorities, or -1 if they are priorities; else empty. The first send of a content decides on its age
-- ARGV[6]   limits       drop ('1': beyond max_backlog, drop what would be delivered last; '0': refuse), max_retries
--   (scores up to it are rollbacks, which are never dropped), ttl ('1': note the time of sending in born); else empty
-- ARGV[7]   chunk        of Spark, which is sent once, see send_chunk; else empty
-- ARGV[8..] parts        of each slot: how many values follow, and the number of messages (1 to 1,000); of several how
--   many have a value of their own (all; or 1: one for all), and the least of the values; then see read_batch
-- Returns: { now_ms, of each slot { number of new ones, '1' or '0' per message if detailed or with bodies, else '',
--   with limits the number dropped } }; '4' for a message whose time has passed: then there are outcomes. Of several
--   slots, the text of its error stands for a slot's reply. now_ms is 0 where nothing depends on the time. There
--   is no reply of a slot if the chunk was sent before
-- Errors: of a slot: RMQ_PAST now_ms lowest if a time does not lie ahead, with `+` if none does; RMQ_FULL size
--   max_backlog. OOM, and a server that takes no writes: nothing was written; a server that cannot write its AOF
-- Complexity: O(n log N)
-- Notes: each slot is sent to atomically. Safe to repeat: a second time all of them merge; with `at` those with a delay
--   are due as much later, the others are refused once their time has passed. Redis' time decides on ages, whatever the
--   mark. Where messages are dropped, one just sent may be among them.
-- @include clock, redis, sends

local unit, limited, ages = ARGV[3], ARGV[6] ~= '', ARGV[5] ~= ''
local from_now = unit == 'after'
local now_ms = (unit ~= 'priority' or limited or ages) and read_clock() or 0
local rules = {
  publish = ARGV[1], max_backlog = tonumber(ARGV[4]), keep_first = from_now,
  detailed = string.sub(ARGV[2], 1, 1) == '1', each = #ARGV[2] > 1,
}

-- Sends the part that begins at ARGV[at] to the slot whose keys stand behind KEYS[base].
local function send_part(base, at)
  local slot = {
    store = KEYS[base + 1], prepare = KEYS[base + 2], body = KEYS[base + 3], meta = KEYS[base + 4],
    wake = KEYS[base + 5],
  }
  local last, number, values, lowest, first = at + tonumber(ARGV[at]), tonumber(ARGV[at + 1]), '1', ARGV[at + 2], at + 2
  if number > 1 then
    values, lowest, first = lowest, ARGV[at + 3], at + 4
  end
  if unit == 'at' and tonumber(lowest) < 0 then
    if values == '1' then -- most delays are sent alone
      lowest = whole(now_ms - lowest)
      ARGV[first] = lowest
    else
      -- @include sends
      lowest = whole(due_times(first, number, 2, now_ms))
    end
  end
  local batch = read_batch(first, last, number, values, from_now and now_ms)
  lowest = from_now and whole(now_ms + lowest) or unit == 'at' and lowest or '0'
  if ages then
    -- @include sends
    local scale, unit_ms, made = string.match(ARGV[5], '^(%d+) (%d+) (%-?%d+)$')
    age_messages(slot, tonumber(scale), tonumber(unit_ms), now_ms, batch, made ~= '-1' and tonumber(made) or nil)
  end
  if limited then
    -- @include sends
    return send_limited(slot, rules, batch, base, unit, lowest, now_ms)
  end
  if unit == 'at' and tonumber(lowest) <= now_ms then
    -- @include sends
    return send_ahead(slot, rules, batch, tonumber(lowest), now_ms)
  end
  return send_batch(slot, rules, batch, lowest, now_ms)
end

local width = limited and 8 or 5
if #KEYS == width then
  local reply = send_part(0, 8)
  return reply.err and reply or { now_ms, reply }
end
if ARGV[7] ~= '' then
  -- @include completion
  local reply = send_chunk(KEYS[width + 1], ARGV[7], (read_clock()), function()
    return send_part(0, 8)
  end)
  return reply and reply.err and reply or { now_ms, reply }
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
  local done, reply = pcall(send_part, base, at)
  local text = type(reply) == 'table' and reply.err or not done and tostring(reply)
  if text and not done and is_of_server(text, written) then
    error(reply, 0)
  end
  written = written or not text
  replies[#replies + 1] = text or reply
  at = at + tonumber(ARGV[at]) + 1
end
return replies
