-- Whole claims: ARGV[at] of them, each a claim score and how many deliveries were claimed with it, all of which are
-- acked without their names. No two claims or renewals of a slot have a score in common, so that what has it now is
-- what is left of this one: if just so many have it, nothing was taken away. Else, or where failures or bodies have to
-- go with them (not `plain`), nothing changes and the score goes into `unmatched`: the caller then names them all.
-- Returns the position after the last one.
-- @include count
local function settle_whole(slot, at, plain, totals, unmatched)
  local last = at + 2 * tonumber(ARGV[at])
  for i = at + 1, last, 2 do
    local claim_score = ARGV[i]
    if not plain or redis.call('ZCOUNT', slot.prepare, claim_score, claim_score) ~= tonumber(ARGV[i + 1]) then
      unmatched[#unmatched + 1] = claim_score
    else
      count(totals, 'acked', redis.call('ZREMRANGEBYSCORE', slot.prepare, claim_score, claim_score))
    end
  end
  return last + 1
end
