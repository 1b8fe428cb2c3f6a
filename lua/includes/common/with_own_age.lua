-- The score of a message that is in store and gets the priority of the score `fresh`: it keeps its own age; see aged.
local function with_own_age(stored, fresh, scale)
  if stored < scale then
    return fresh
  end
  return fresh - fresh % scale + stored % scale
end
