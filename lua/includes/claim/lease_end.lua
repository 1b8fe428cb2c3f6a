-- When the lease of a claim score is over, by Redis' clock: epoch ms. Below 10^14 it is of a release that stamped
-- claims with whole seconds. What no claim can have written is over now.
-- @include highest_claim
local function lease_end(score, clock, now_ms)
  if score < 1e14 then
    return (math.floor(score / 1000) + math.ceil(clock.lease_ms / 1000) + 1) * 1000
  end
  return score > highest_claim(clock) and now_ms or math.floor(score / 1000) + clock.lease_ms + 1 - clock.skew
end
