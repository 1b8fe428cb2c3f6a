-- Whether a chunk of a streaming query was sent before: its mark is that of a later batch, or of this one with the same
-- digest. Then the query's marks are kept for longer. Else returns false, and the digest that this batch left there.
local function sent_before(sent, chunk, batch, digest, keep_s)
  local mark = redis.call('HGET', sent, chunk)
  local old, old_digest = string.match(mark or '', '^(%d+):(.*)$')
  local same = old and tonumber(old) == batch
  if not old or tonumber(old) < batch or (same and old_digest ~= digest) then
    return false, same and old_digest
  end
  redis.call('EXPIRE', sent, keep_s)
  return true
end
