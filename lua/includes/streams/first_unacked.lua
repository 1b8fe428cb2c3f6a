-- The id after another one, and the first id that some group still needs.
-- @include groups_of
-- @include ids_in_order
local function id_after(id)
  local ms, sequence = split_id(id)
  return string.format('%.0f-%.0f', ms, sequence + 1)
end

-- From this id on, some group has entries unread or unacked; nil where no group is.
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
