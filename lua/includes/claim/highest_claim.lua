-- The highest score that a claim can have: the slot's clock or its last stamp, and a day, the longest lease, beside.
local function highest_claim(clock)
  return (math.max(clock.now, clock.last or 0) + 86400000) * 1000
end
