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
