-- Turns the delays among fixed times into times, in ARGV: a value below 0 is the number of ms from now, negated. The
-- values stand at ARGV[at] and at each `step` after it. Returns the earliest time.
-- @include whole
local function due_times(at, values, step, now_ms)
  local lowest, value, due = math.huge, nil, nil
  for i = at, at + (values - 1) * step, step do
    if ARGV[i] ~= value then
      value = ARGV[i]
      due = value
      local due_ms = tonumber(value)
      if due_ms < 0 then
        due_ms = now_ms - due_ms
        due = whole(due_ms)
      end
      lowest = math.min(lowest, due_ms)
    end
    ARGV[i] = due
  end
  return lowest
end
