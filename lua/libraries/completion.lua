-- Calls that count once: a repeat of a completed call gets its reply and is not carried out. Kept by lane for the calls
-- of a client, by name for `once`, and by chunk for the tasks of Spark. Invariant: noted in the call that writes.
-- @include redis

-- Completed calls: what a call has answered is kept, so that its repeat gets the same reply and is not carried out. A
-- hash has of each `field` - a lane in which a client numbers its calls, a name that a caller gave, a chunk that tasks
-- of Spark send - `time|floor|number:reply:digest|...`: when it was last used, ms; the lowest number that may still be
-- repeated; and of the numbers from there on the replies, as text without `:` and `|`, with digests of what was sent.
-- Source: RIFL (Lee et al., SOSP 2015), section 3. A `call` has its `number`, as text, its `floor` and its `digest`;
-- `keep` says for how long: `key_ms`, after which the hash expires, counted from its last use, as noted every
-- `noted_ms`; `unused_ms`, after which a field may be dropped, nil for never; `named`: and then counts no more.
--
-- Returns `reply` and `digest` of the call's number, if it was carried out before; the `floor` of its field, or 0; and,
-- for `complete`, what else is kept there.
local function completed(hash, field, call, keep, now_ms)
  local used, lowest, rest = string.match(redis.call('HGET', hash, field) or '', '^(%d+)|(%d+)(.*)$')
  local known = { floor = 0, kept = {} }
  if not used or keep.named and tonumber(used) < now_ms - keep.unused_ms then
    return known
  end
  known.used, known.floor = tonumber(used), tonumber(lowest)
  for number, reply, digest in string.gmatch(rest, '|(%d+):([^:|]*):([^|]*)') do
    if number == call.number then
      known.reply, known.digest = reply, digest
    elseif tonumber(number) >= call.floor then
      known.kept[#known.kept + 1] = number .. ':' .. reply .. ':' .. digest
    end
  end
  if known.reply or tonumber(call.number) < known.floor then
    redis.call('PEXPIRE', hash, whole(keep.key_ms)) -- who waits for replicas waits for the call before, too
  end
  return known
end

-- Notes the reply of a call that was carried out. Beside a new field four others are looked at, and dropped if unused.
local function note_completion(hash, field, call, reply, keep, known, now_ms)
  local used, last = known.used, now_ms
  if not used and keep.unused_ms then
    local others, old = redis.call('HRANDFIELD', hash, 4, 'WITHVALUES'), {}
    for i = 1, #others, 2 do
      if (tonumber(string.match(others[i + 1], '^%d+')) or 0) < now_ms - keep.unused_ms then
        old[#old + 1] = others[i]
      end
    end
    if #old > 0 then
      redis.call('HDEL', hash, unpack(old))
    end
  elseif used and used <= now_ms and now_ms - used < keep.noted_ms then
    last = used
  end
  known.kept[#known.kept + 1] = call.number .. ':' .. reply .. ':' .. call.digest
  local head = whole(last) .. '|' .. whole(math.max(call.floor, known.floor)) .. '|'
  redis.call('HSET', hash, field, head .. table.concat(known.kept, '|'))
  if last ~= used then
    redis.call('PEXPIRE', hash, whole(keep.key_ms))
  end
end

-- What is answered for a chunk of a task of Spark that was sent before, nil if it is to be sent: its mark is that of a
-- later batch, or of this one with the same digest, whatever was refused of it. Where its calls took the first messages
-- only, the reply that is kept is how many of them are sent, and what follows these is to be sent. Other messages are
-- refused if the sends are counted (`strict`), and else sent.
local function sent_before(known, call, strict, first)
  if known.floor > call.floor or known.digest == call.digest and known.reply == '' then
    return { 0, '', '0', '', '' }
  end
  local own, without = string.match(known.digest or '', '^(%x*)%-?([%d.]*)$')
  local same = own == string.match(call.digest, '^%x*')
  if known.digest and same and known.reply ~= first then
    return { 0, '', '0', without, known.reply }
  end
  return known.digest and strict and not same and redis.error_reply('RMQ_CHANGED ' .. call.number) or nil
end

-- Sends a chunk of a task of Spark by `send`, unless it was sent before: its mark in the hash `sent` is that of a later
-- batch, or of this one with the same digest. Then it returns nil. `chunk`: its name, the number of the batch, the
-- digest of its messages, and for how many seconds marks are kept after the last send of the query to this slot.
local function send_chunk(sent, chunk, now_ms, send)
  local name, batch, digest, keep_s = string.match(chunk, '^(%S+) (%d+) (%S+) (%d+)$')
  local call = { number = batch, floor = tonumber(batch), digest = digest }
  local keep = { key_ms = keep_s * 1000, noted_ms = 0 }
  local known = completed(sent, name, call, keep, now_ms)
  if known.floor > call.floor or known.digest == digest then
    return nil
  end
  local reply = send()
  if not reply.err then
    note_completion(sent, name, call, '', keep, known, now_ms)
  end
  return reply
end
