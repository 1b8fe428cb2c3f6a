-- From this id on, some group has entries unread or unacked; nil where no group is.
-- @include groups_of
-- @include ids_in_order
-- @include id_after
local function first_unacked(store)
  local lowest
  for _, found in ipairs(groups_of(store)) do
    local pending = redis.call('XPENDING', store, found[2], '-', '+', 1)[1]
    local id = pending and pending[1] or id_after(found[8])
    if not lowest or before(id, lowest) then
      lowest = id
    end
  end
  return lowest
end
