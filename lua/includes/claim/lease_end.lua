-- When the lease of a claim score is over, by Redis' clock: epoch ms. What no claim can have written is over now.
-- @include highest_claim
local function lease_end(score, clock, now_ms)
  return score > highest_claim(clock) and now_ms or math.floor(score / 1000) + clock.lease_ms + 1 - clock.skew
end
