-- The score of a message that is sent at `now_ms` to a PRIORITY topic where the oldest of equal priorities is first:
-- priority x `scale`, a power of two, plus what is left of `scale` - 1 without the age mark. The mark is the time of
-- sending in whole `unit_ms` since 2025-01-01; the last one stands for all later times. Scores below `scale` are of
-- rollbacks, or of senders that know no ages.
local function aged(priority, scale, unit_ms, now_ms)
  local mark = math.floor((now_ms - 1735689600000) / unit_ms)
  return priority * scale + scale - 1 - math.max(0, math.min(mark, scale - 1))
end
