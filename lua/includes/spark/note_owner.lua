-- Notes who owns this slot for a query, see `query_owner`. Without ZooKeeper it notes nothing.
-- @include query_owner
local function note_owner(query, epoch, ensemble)
  local known, where = query_owner(query)
  if ensemble ~= '' and (known ~= epoch or where ~= ensemble) then
    redis.call('HSET', query, 'owner', epoch .. ' ' .. ensemble)
  end
end
