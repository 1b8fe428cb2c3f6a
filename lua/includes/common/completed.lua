-- Completed calls: what a call has answered is kept, so that its repeat gets the same reply and is not carried out. A
-- hash has of each `field` - a lane in which a client numbers its calls, a name that a caller gave, a chunk that tasks
-- of Spark send - `time|floor|number:reply:digest|...`: when it was last used, ms; the lowest number that may still be
-- repeated; and of the numbers from there on the replies, as text without `:` and `|`, with digests of what was sent.
-- Source: RIFL (Lee et al., SOSP 2015), section 3. A `call` has its `number`, as text, its `floor` and its `digest`;
-- `keep` says for how long: `key_ms`, after which the hash expires, counted from its last use, as noted every
-- `noted_ms`; `unused_ms`, after which a field may be dropped, nil for never; `named`: and then counts no more.
-- @include whole

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
local function complete(hash, field, call, reply, keep, known, now_ms)
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
