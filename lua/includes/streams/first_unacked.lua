-- The first id that some group still needs: from there on it has entries unread or unacked. nil where no group is.
-- @include entry_ids
local function first_unacked(store)
  local lowest
  local groups = redis.pcall('XINFO', 'GROUPS', store)
  for _, found in ipairs(groups.err and {} or groups) do
    local pending = redis.call('XPENDING', store, found[2], '-', '+', 1)[1]
    local id = pending and pending[1] or id_after(found[8])
    if not lowest or before(id, lowest) then
      lowest = id
    end
  end
  return lowest
end
