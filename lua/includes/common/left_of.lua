-- The retries left that a claim or retry score tells, 0 to max_retries. A score that no script has written, a
-- fraction or an infinite one, tells something in these bounds, too: what has it is a message like any other.
local function left_of(score, max_retries)
  local left = math.floor(score % 1000)
  return left <= max_retries and left or max_retries -- not a number: neither more nor less
end
