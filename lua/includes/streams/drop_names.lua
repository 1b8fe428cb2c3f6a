-- Drops those names of claims (see holder_of) in `slot.left` that hold nothing any more.
local function drop_names(slot)
  for name in pairs(slot.left) do
    if #redis.call('XPENDING', slot.store, slot.group, '-', '+', 1, name) == 0 then
      redis.call('XGROUP', 'DELCONSUMER', slot.store, slot.group, name)
    end
  end
end
