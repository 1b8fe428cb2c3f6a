-- Folds: two values of one content become one, by the rule of the topic. A value moves from `body` to `held` when its
-- message is claimed (hold), and back when the message returns to store: after a nack or a release, when its lease has
-- ended, or when its retry is due (fold_back; for the content itself see return_to_store and roll_back in settlements).
-- Invariant: a send that is stored is counted in one record, until that is acked or leaves the backlog by hand: in
-- `body` (store), in `held` (in flight, or waiting for a retry) or in `dead_body`.
-- @include redis, bodies, merge_record

-- Whether the value of a record of kind `K`, `R` or `N` has no body.
local function is_bodiless(value)
  return value == '' or only_trace(value, 2)
end

-- One record of two: as if the sends of the older one and those of the newer one had been one message's. The kind says
-- how; where kinds differ, the newer value stands. See docs/internals/merging.md.
local function fold(older, newer)
  local kind, number, value = newer.kind, newer.number, newer.value
  if kind == 'R' and is_bodiless(value) then
    if string.find('KRN', older.kind, 1, true) and not is_bodiless(older.value) then
      value = older.value
    end
  elseif older.kind ~= kind then
    value = newer.value
  elseif kind == 'S' then
    number = older.number + number
  elseif kind == 'X' then
    number = math.max(older.number, number)
  elseif kind == 'I' then
    number = math.min(older.number, number)
  elseif kind == 'K' then
    value = older.value
  elseif kind == 'N' and older.number > number then
    number, value = older.number, older.value
  elseif kind == 'C' then
    number, value = older.number + number, older.value .. value
  elseif kind == 'U' or kind == 'J' then
    local before = kind == 'U' and older.value or string.sub(value, 1, 8) .. string.sub(older.value, 9)
    value, number = union(before, older.number, value, frames_from(kind))
  end
  local first = older.first
  if first == 0 or (newer.first > 0 and newer.first < first) then
    first = newer.first
  end
  return {
    count = older.count + newer.count, first = first, last = math.max(older.last, newer.last), number = number,
    kind = kind, value = value,
  }
end

-- A join in store that has all of its parts by a fold, `record`, is due at once. Returns whether it was to wait.
local function end_wait(store, name, record, now_ms)
  return record.kind == 'J'
    and record.number >= struct.unpack('<d', record.value)
    and redis.call('ZADD', store, 'XX', 'LT', 'CH', whole(now_ms), name) == 1
end

-- Moves the values of up to 1,000 contents that have just been claimed from `body` to `held`: what is sent from now on
-- folds into a value of its own. One that waited for a retry has a value there, which is the older one: `slot.retried`
-- says whether any may have; `slot.waiting` has those that were read before. `bodies`: their values, in the order of
-- `names`, false for none. Returns the values that are handed over.
local function hold(slot, names, bodies)
  local values, moved, fields = {}, {}, {}
  for i, name in ipairs(names) do
    local value, before = bodies[i] or false, slot.retried and slot.waiting[name]
    if before == nil then
      before = redis.call('HGET', slot.held, name)
    end
    if before and value then
      value = write_record(fold(read_record(before), read_record(value)))
    end
    values[i] = value or before or false
    if bodies[i] then
      moved[#moved + 1] = name
      fields[#fields + 1], fields[#fields + 2] = name, value
    end
  end
  if #moved > 0 then
    fill_hash(slot.held, fields)
    redis.call('HDEL', slot.body, unpack(moved))
  end
  return values
end

-- The value of a message that goes back to store, from `held` into `body`; `fresh`: a copy is in store, which folds
-- into it. One that was claimed without `held` has left its value in `body`. `now_ms`: the copy is due now where it has
-- all that it waits for; nil: its time is set by hand. Returns what it has cost (see fold_cost), and whether it is due
-- sooner than it was.
local function fold_back(slot, content, fresh, now_ms)
  local record, sooner = redis.call('HGET', slot.held, content), false
  if not record then
    return 0, sooner
  end
  local cost = move_cost(#record)
  if fresh then
    local older, newer = read_record(record), read_record(redis.call('HGET', slot.body, content))
    local folded = fold(older, newer)
    record, cost = write_record(folded), fold_cost(older, newer)
    sooner = now_ms and end_wait(slot.store, content, folded, now_ms)
  end
  slot.refolded = true
  if #record > 4096 then
    redis.call('HDEL', slot.meta, 'body_bound')
    slot.body_bound = nil
  end
  redis.call('HSET', slot.body, content, record)
  redis.call('HDEL', slot.held, content)
  return cost, sooner
end

-- The record of a message that dies, with that of an earlier death of its content. Of items the newest stay that have
-- up to 1 MiB, of sets up to 10,000: a content may die again and again. Also returns what it has cost (see fold_cost).
local function fold_dead(slot, name, record)
  local earlier = redis.call('HGET', slot.dead_body, name)
  if not earlier or not record then
    return record or earlier, move_cost(#(record or earlier or ''))
  end
  local older, newer = read_record(earlier), read_record(record)
  local folded = fold(older, newer)
  local kind, excess = folded.kind, #folded.value - 1048576
  local most = kind == 'C' and math.huge or 10000
  if (excess > 0 or folded.number > most) and (kind == 'C' or kind == 'U' or kind == 'J') then
    local from = frames_from(kind)
    local at, dropped = from, 0
    while (excess > 0 or folded.number - dropped > most) and at <= #folded.value and dropped < folded.number - 1 do
      local last = frame_end(folded.value, at)
      excess, at, dropped = excess - (last + 1 - at), last + 1, dropped + 1
    end
    folded.number = folded.number - dropped
    folded.value = string.sub(folded.value, 1, from - 1) .. string.sub(folded.value, at)
  end
  return write_record(folded), fold_cost(older, newer)
end

-- Folds a sent record into the one that its content has in store: as `fold`, within the topic's bounds. `held_bytes`:
-- how long the value in flight is; both have room for twice `max_bytes`. Returns the record, or nil and why not:
-- `ITEMS` (full of items, or of their bytes) or `RANGE` (a sum that a double does not hold).
local function fold_sent(rules, stored, sent, held_bytes)
  local kind = sent.kind
  if kind == 'S' then
    local sum = stored and stored.kind == 'S' and stored.number + sent.number or sent.number
    if math.abs(sum) > 9007199254740991 then
      return nil, 'RANGE'
    end
  end
  if kind ~= 'C' and kind ~= 'U' and kind ~= 'J' then
    return stored and fold(stored, sent) or sent
  end
  local at = frames_from(kind)
  local room = math.min(rules.max_bytes, 2 * rules.max_bytes - held_bytes)
  local folded = fold(stored or { count = 0, first = 0, last = 0, number = 0 }, sent) -- a copy: it may be cut
  if folded.number <= rules.max_items and #folded.value + 1 - at <= room then
    return folded
  end
  if rules.when_full == 'refuse' or rules.when_full == 'release' then
    local before = stored and stored.kind == kind and stored or { number = 0, value = '' }
    local full = before.number >= rules.max_items or #before.value + 1 - at >= room
    local adds = folded.number > before.number -- what is there already needs no room
    if adds and (full or rules.when_full == 'refuse') then
      return nil, 'ITEMS'
    end
    return folded
  end
  local first, value = at, folded.value
  if rules.when_full == 'drop_newest' then
    local kept = stored and stored.kind == kind and stored.number or 0
    first = kept > 0 and #stored.value + 1 or at
    local last, number = frames_within(value, first, rules.max_items - kept, room - (first - at))
    folded.number, folded.value = kept + number, string.sub(value, 1, last - 1)
    return folded
  end
  local number, excess = folded.number, #value + 1 - at - room
  while number > 0 and (number > rules.max_items or excess > 0) do
    local last = frame_end(value, first)
    first, number, excess = last + 1, number - 1, excess - (last + 1 - first)
  end
  folded.number, folded.value = number, string.sub(value, 1, at - 1) .. string.sub(value, first)
  return folded
end
