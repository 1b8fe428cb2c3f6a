-- Moves the values of up to 1,000 contents that have just been claimed from `body` to `held`: what is sent from now on
-- folds into a value of its own. One that waited for a retry has a value there, which is the older one: `slot.retried`
-- says whether any may have; `slot.waiting` has those that were read before. `bodies`: their values, in the order of
-- `names`, false for none. Returns the values that are handed over.
-- @include records
-- @include write_record
-- @include fold
-- @include fill_hash
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
