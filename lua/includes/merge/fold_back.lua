-- The value of a message that goes back to store, from `held` into `body`; `fresh`: a copy is in store, which folds
-- into it. One that was claimed without `held` has left its value in `body`. `now_ms`: the copy is due now where it has
-- all that it waits for; nil: its time is set by hand. Returns what it has cost (see fold_cost), and whether it is due
-- sooner than it was.
-- @include records
-- @include write_record
-- @include fold
-- @include move_cost
-- @include fold_cost
-- @include end_wait
local function fold_back(slot, content, fresh, now_ms)
  local record, sooner = redis.call('HGET', slot.held, content), false
  if not record then
    return 0, sooner
  end
  local cost = move_cost(#record)
  if fresh then
    local older, newer = read_record(record), read_record(redis.call('HGET', slot.body, content))
    local folded = fold(older, newer)
    record, cost = write_record(folded), fold_cost(older, newer)
    sooner = now_ms and end_wait(slot.store, content, folded, now_ms)
  end
  slot.refolded = true
  if #record > 4096 then
    redis.call('HDEL', slot.meta, 'body_bound')
    slot.body_bound = nil
  end
  redis.call('HSET', slot.body, content, record)
  redis.call('HDEL', slot.held, content)
  return cost, sooner
end
