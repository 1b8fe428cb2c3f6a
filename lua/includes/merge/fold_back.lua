-- The value of a message that goes back to store, from `held` into `body`; `fresh`: a copy is in store, which folds
-- into it. One that was claimed without `held` has left its value in `body`.
-- @include records
-- @include fold
local function fold_back(slot, content, fresh)
  local record = redis.call('HGET', slot.held, content)
  if not record then
    return
  end
  if fresh then
    local other = redis.call('HGET', slot.body, content)
    record = write_record(fold(read_record(record), read_record(other)))
  end
  slot.refolded = true
  if #record > 4096 then
    redis.call('HDEL', slot.meta, 'body_bound')
    slot.body_bound = nil
  end
  redis.call('HSET', slot.body, content, record)
  redis.call('HDEL', slot.held, content)
end
