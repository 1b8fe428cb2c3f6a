-- The score of a message that is sent at `now_ms` to a PRIORITY topic where the oldest of equal priorities is first:
-- priority x `scale`, a power of two, plus what is left of `scale` - 1 without the age mark. Scores below `scale` are
-- of rollbacks.
-- @include age_mark
local function aged(priority, scale, unit_ms, now_ms)
  return priority * scale + scale - 1 - age_mark(scale, unit_ms, now_ms)
end
