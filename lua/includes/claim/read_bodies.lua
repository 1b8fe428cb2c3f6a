-- The bodies of what is claimed, in its order, false for none. What they do not need of the room is given back. A body
-- above the bound was stored by a release that knows of no bound: `slot.bound_broken` says so.
-- @include fits
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
