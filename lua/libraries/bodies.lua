-- Bodies: a hash content -> body, of what is in store, prepare or retry; where the topic merges, what is in flight or
-- waits for a retry has its value in `held`, and `body` is that of store alone. What dies takes its body to `dead_body`.
-- Invariant: a body is deleted when its content leaves the last of these places; a crash between two writes may leave
-- one alone, which the next send replaces, or folds into.
-- @include room

-- Whether a stored body is that of a message without one: a trace context in front of nothing. `at`: where the body
-- begins in the text. The layout is that of rmq/_model/records.py.
local function only_trace(text, at)
  return string.find(text, '^%zrmq:trace%z[^%z]*%z0', at) ~= nil
end

-- Deletes the bodies of up to 1,000 contents that have just left prepare, except where a fresh copy is in store.
local function drop_bodies(slot, contents)
  local fresh = redis.call('ZMSCORE', slot.store, unpack(contents))
  local gone = {}
  for i = 1, #contents do
    if not fresh[i] then
      gone[#gone + 1] = contents[i]
    end
  end
  if #gone > 0 then
    redis.call('HDEL', slot.body, unpack(gone))
  end
end

-- Deletes the bodies and the last failures of up to 1,000 contents that have left store, unless they are in flight or
-- wait for a retry; where the topic merges, these have values of their own, and all the bodies go.
local function forget_unused(slot, contents)
  local held = redis.call('ZMSCORE', slot.prepare, unpack(contents))
  local waiting = redis.call('ZMSCORE', slot.retry, unpack(contents))
  local unused = {}
  for i, content in ipairs(contents) do
    if not held[i] and not waiting[i] then
      unused[#unused + 1] = content
    end
  end
  local doomed = slot.held and contents or unused
  if #doomed > 0 then
    redis.call('HDEL', slot.body, unpack(doomed))
  end
  if #unused > 0 then
    redis.call('HDEL', slot.error, unpack(unused))
  end
end

-- The bodies of what is claimed, in its order, false for none. What they do not need of the room is given back. A body
-- above the bound was stored by a release that knows of no bound: `slot.bound_broken` says so.
local function read_bodies(slot, names)
  if not next(slot.bodies) then
    local bodies, bound = redis.call('HMGET', slot.body, unpack(names)), slot.body_bound
    if bound then
      local left = slot.room.left + slot.weight * bound * #slot.assumed
      for i = 1, #names do
        local bytes = bodies[i] and #bodies[i] or 0
        left = left - slot.weight * bytes
        slot.bound_broken = slot.bound_broken or bytes > bound
      end
      slot.room.left = left
    end
    return bodies
  end
  if #slot.assumed > 0 then
    weigh(slot)
  end
  local bodies, places, missing = {}, {}, {}
  for i = 1, #names do
    local body = slot.bodies[names[i]]
    bodies[i] = body or false
    if body == nil then
      places[#places + 1], missing[#missing + 1] = i, names[i]
    end
  end
  if #missing > 0 then
    for n, body in ipairs(redis.call('HMGET', slot.body, unpack(missing))) do
      bodies[places[n]] = body
    end
  end
  return bodies
end

-- Keeps `body_bound` of meta true: no body of the slot has more bytes. A claim notes it where the slot had no bodies,
-- or where it has asked for the sizes of all of them; and forgets it once it has read a larger one. `fields`: what is
-- written to meta next.
local function note_bound(slot, number_of_bodies, fields)
  if slot.bound_broken then
    redis.call('HDEL', slot.meta, 'body_bound')
  elseif not slot.body_bound and slot.weighed.number == number_of_bodies and slot.weighed.largest <= 4096 then
    fields[#fields + 1], fields[#fields + 2] = 'body_bound', '4096'
  end
end
