-- The groups of a stream, as XINFO GROUPS says; none without the stream. Second, the one of this name, if there is.
local function groups_of(store, name)
  local groups, named = redis.pcall('XINFO', 'GROUPS', store), nil
  groups = groups.err and {} or groups
  for _, found in ipairs(groups) do
    if found[2] == name then
      named = found
    end
  end
  return groups, named
end
