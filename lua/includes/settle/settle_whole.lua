-- Acks all `number` deliveries that were claimed with this score, without their names. No two claims or renewals of a
-- slot have a score in common, so that what has it now is what is left of this one: if just so many have it, nothing
-- was taken away. Else, or where failures or bodies have to go with them, nothing changes and the answer is false: the
-- caller then names them all.
-- @include count
local function settle_whole(slot, claim_score, number, plain, totals)
  if not plain or redis.call('ZCOUNT', slot.prepare, claim_score, claim_score) ~= number then
    return false
  end
  count(totals, 'acked', redis.call('ZREMRANGEBYSCORE', slot.prepare, claim_score, claim_score))
  return true
end
