-- An entry was trimmed or deleted while a group still had it: nothing is left to deliver.
-- Out of the pending list, where it would stick for ever, and into the account of what was lost. Redis 7 drops it from
-- the list by itself.
-- @include count
-- @include padded_id
local function lose_entry(slot, id, totals, lost)
  redis.call('XACK', slot.store, slot.group, id)
  redis.call('ZREM', slot.retry, padded_id(id))
  redis.call('HDEL', slot.error, id)
  count(totals, 'lost', 1)
  lost[#lost + 1] = id
end
