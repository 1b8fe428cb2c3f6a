-- What a call may hand over: `slot.room`, bytes of contents and bodies. Invariant: the first message of a call may have
-- any size; all others fit, but for a body above the bound that was assumed (`bound_broken`).
-- @include redis

-- Begins a claim: nothing is assumed yet.
local function begin_room(slot, room, number_of_bodies, bound)
  slot.room, slot.bodied, slot.body_bound = room, number_of_bodies > 0, tonumber(bound or nil)
  slot.assumed, slot.bodies, slot.weighed, slot.waiting = {}, {}, { number = 0, largest = 0 }, {}
  slot.weight = slot.held and 4 or 1 -- as move_cost
end

-- Reads the bodies that were assumed to be as large as may be, and gives back the room that they do not need.
local function weigh(slot)
  local names, room = slot.assumed, slot.room
  if #names == 0 then
    return
  end
  slot.assumed = {}
  for i, body in ipairs(redis.call('HMGET', slot.body, unpack(names))) do
    local bytes = body and #body or 0
    slot.bodies[names[i]] = body
    room.left = room.left + slot.weight * (slot.body_bound - bytes)
    slot.bound_broken = slot.bound_broken or bytes > slot.body_bound
  end
end

-- The size of a body that must be known.
local function body_bytes(slot, content)
  local bytes, weighed = redis.call('HSTRLEN', slot.body, content), slot.weighed
  if bytes > 0 and not weighed[content] then
    weighed[content], weighed.number = true, weighed.number + 1
    weighed.largest = math.max(weighed.largest, bytes)
  end
  return bytes
end

-- Whether a message fits into what its call may still hand over, and takes it off. One message may have any size. One
-- that does not fit uses all of the room up: to look for smaller ones elsewhere would be to read large ones in vain.
-- What is in flight is not asked about, so a value in `held` is one that waits for a retry, and is handed over, too: it
-- counts for what it costs to move it, and to fold it into the one in store (see fold_cost), which is left for a call
-- that has room. To ask for the size of each body would cost a command a message. So a body counts as large as the
-- bound while there is room for that, until it is read.
local function fits(slot, content)
  local room, bytes, bound, weight = slot.room, #content, slot.body_bound, slot.weight
  local known = slot.bodies[content]
  if known ~= nil then
    bytes = bytes + weight * (known and #known or 0)
  elseif slot.bodied then
    if bound and #slot.assumed > 0 and bytes + weight * bound > room.left then
      weigh(slot)
    end
    if bound and bytes + weight * bound <= room.left then
      slot.assumed[#slot.assumed + 1] = content
      bytes = bytes + weight * bound
    else
      bytes = bytes + weight * body_bytes(slot, content)
    end
  end
  local first = room.first
  local waiting = slot.retried and redis.call('HGET', slot.held, content)
  if slot.retried then
    slot.waiting[content] = waiting
  end
  if waiting then
    -- @include merge_record
    local body = redis.call('HGET', slot.body, content)
    slot.bodies[content] = body
    bytes = bytes + fold_cost(read_record(waiting), read_record(body))
    first = first and room.left > 0
  end
  if bytes > room.left and not first then
    room.left = 0
    return false
  end
  room.left, room.first = room.left - bytes, false
  return true
end

-- Whether anything may still fit.
local function has_room(slot)
  return slot.room.left > 0 or slot.room.first
end

-- Which messages of a page are in flight, where any are.
local function held_of(slot, page)
  local names = {}
  for i = 1, #page, 2 do
    names[#names + 1] = page[i]
  end
  return not slot.unheld and #names > 0 and redis.call('ZMSCORE', slot.prepare, unpack(names)) or {}
end

-- Whether a page fits whose values are known to be small: all of them are read, and taken off as large as they are.
-- Where they do not fit, nothing is taken off. `held`: see held_of.
local function all_fit(slot, page, held)
  local bytes, bodies = 0, redis.call('HMGET', slot.body, unpack(contents_of(page)))
  for n = 1, #bodies do
    local content, size = page[2 * n - 1], bodies[n] and #bodies[n] or 0
    if size > slot.body_bound then
      return false
    end
    slot.bodies[content] = bodies[n]
    bytes = bytes + (held[n] and 0 or #content + slot.weight * size)
  end
  if bytes > slot.room.left then
    return false
  end
  slot.room.left, slot.room.first = slot.room.left - bytes, slot.room.first and bytes == 0
  return true
end

-- How many messages of a page, from its first one on, fit. What is in flight is passed over, and takes no room.
local function fitting(slot, page)
  local number, bound = #page / 2, slot.body_bound
  if number == 0 then -- the page before it was the last one, and full
    return 0
  end
  if slot.bodied and bound and number > 16 and
    math.max(body_bytes(slot, page[1]), body_bytes(slot, page[#page - 1])) > bound then
    weigh(slot) -- a release that knows of no bound has stored them: from here on each is asked for its size
    slot.bound_broken, slot.body_bound = true, nil
  end
  if not slot.retried and (not slot.bodied or slot.body_bound) then
    local bytes = slot.bodied and number * slot.weight * slot.body_bound or 0
    for i = 1, #page, 2 do
      bytes = bytes + #page[i]
    end
    if bytes <= slot.room.left and bytes > 0 then
      slot.room.left, slot.room.first = slot.room.left - bytes, false
      if slot.bodied then
        local assumed = slot.assumed
        for i = 1, #page, 2 do
          assumed[#assumed + 1] = page[i]
        end
      end
      return number
    end
  end
  local held = held_of(slot, page)
  if slot.held and slot.bodied and slot.body_bound and not slot.retried and all_fit(slot, page, held) then
    return number
  end
  for n = 1, number do
    if not held[n] and not fits(slot, page[2 * n - 1]) then
      return n - 1
    end
  end
  return number
end
