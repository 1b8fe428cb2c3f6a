-- Acks all `number` deliveries that were claimed with this score, naming but one of them, the witness. If it has this
-- score, and just so many have it, and their lease runs, so that nobody else can have taken one of them out of prepare,
-- then they are the ones. Where that cannot be told, or where failures or bodies have to go with them, nothing changes
-- and the answer is false: the caller then names them all.
local function settle_whole(slot, claim_score, number, witness, now_s, lease_s, plain, totals)
  local running = math.floor(tonumber(claim_score) / 1000) + lease_s >= now_s
  if not running or not plain or redis.call('ZSCORE', slot.prepare, witness) ~= claim_score then
    return false
  end
  if redis.call('ZCOUNT', slot.prepare, claim_score, claim_score) ~= number then
    return false
  end
  count(totals, 'acked', redis.call('ZREMRANGEBYSCORE', slot.prepare, claim_score, claim_score))
  return true
end
