-- Reads a part of what is due, from a rank on, in the order of delivery: contents and store scores, alternating.
-- `slot.view`: order and place of what is read where ties are `any`; then each part follows the one before.
local function read_page(slot, highest_first, rank, size, upto)
  if slot.view then
    -- @include read_turned
    return read_turned(slot, slot.view, size)
  elseif highest_first then
    return redis.call('ZREVRANGE', slot.store, rank, rank + size - 1, 'WITHSCORES')
  end
  return redis.call('ZRANGEBYSCORE', slot.store, '-inf', upto, 'WITHSCORES', 'LIMIT', rank, size)
end
