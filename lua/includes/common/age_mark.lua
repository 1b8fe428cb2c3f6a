-- The age mark of a message that is sent at `now_ms`: the time in whole `unit_ms` since 2025-01-01. The last one that
-- is below `scale` stands for all later times.
local function age_mark(scale, unit_ms, now_ms)
  return math.max(0, math.min(math.floor((now_ms - 1735689600000) / unit_ms), scale - 1))
end
