-- Calls that may be repeated: `marks` has of each lane `time|floor|number:reply:digest|...`: when it was last used, ms;
-- the lowest number that may still be repeated; and the replies of the numbers from there on, with the digest of named
-- calls. Source: RIFL (Lee et al., SOSP 2015), section 3.

-- Returns the reply of a call that was carried out before, or a refusal; else nil, and what is kept of its lane. A name
-- that a caller gave, `=` before it, is forgotten an hour after its last use: then it stands for another call.
local function repeated(slot, lane, number, floor, digest, now_ms)
  local text = redis.call('HGET', slot.marks, lane)
  local kept = {}
  if not text then
    return nil, kept, false, 0
  end
  local used, lowest, rest = string.match(text, '^(%d+)|(%d+)(.*)$')
  local known_floor = tonumber(lowest or 0)
  if string.sub(lane, 1, 1) == '=' and tonumber(used or 0) < now_ms - 3600000 then
    return nil, kept, false, 0
  end
  for done, new, dropped, outcomes, known in string.gmatch(rest or '', '|(%d+):(%d+):(%d+):(%d*):(%x*)') do
    if done == number and known ~= digest then
      return redis.error_reply('RMQ_OTHER ' .. lane)
    elseif done == number then
      redis.call('PEXPIRE', slot.marks, '7200000') -- a write: who waits for replicas, waits for the call before, too
      return { tonumber(new), outcomes, dropped }
    end
    if tonumber(done) >= floor then
      kept[#kept + 1] = table.concat({ done, new, dropped, outcomes, known }, ':')
    end
  end
  if tonumber(number) < known_floor then
    return redis.error_reply('RMQ_REPEATED ' .. number .. ' ' .. lowest)
  end
  return nil, kept, tonumber(used or 0), known_floor
end

-- Notes the reply of a call. A new lane has four others looked at, of which those unused for an hour are dropped; the
-- key expires two hours after its last use, as noted once a minute.
local function note_reply(slot, lane, number, floor, now_ms, reply, kept, used, known_floor)
  if not used then
    local others, old = redis.call('HRANDFIELD', slot.marks, 4, 'WITHVALUES'), {}
    for i = 1, #others, 2 do
      if (tonumber(string.match(others[i + 1], '^%d+')) or 0) < now_ms - 3600000 then
        old[#old + 1] = others[i]
      end
    end
    if #old > 0 then
      redis.call('HDEL', slot.marks, unpack(old))
    end
  end
  kept[#kept + 1] = table.concat({ number, reply[1], reply[3], reply[2], reply.digest }, ':')
  local last = used and now_ms - used < 60000 and now_ms >= used and used or now_ms
  local head = whole(last) .. '|' .. whole(math.max(floor, known_floor)) .. '|'
  redis.call('HSET', slot.marks, lane, head .. table.concat(kept, '|'))
  if last ~= used then
    redis.call('PEXPIRE', slot.marks, '7200000')
  end
end
