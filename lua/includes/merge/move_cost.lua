-- What it costs the server to move a value of a topic that merges, counted in bytes of bodies as `slot.budget` and
-- `slot.room` have them: each MiB of these is about a millisecond.
local function move_cost(size)
  return 4 * size
end
