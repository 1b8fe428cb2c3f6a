-- A claimed message goes back: to store with its retries left as score, or to retry until due_ms (0: at once). A
-- fresh copy in store stands as it is, with its own time or priority and all its retries. Where the topic merges, its
-- value goes along, unless it waits. Returns what that has cost, and whether the fresh copy is due sooner by it.
-- @include count
-- @include whole
-- @include keep_failure
local function roll_back(slot, content, retries_left, due_ms, now_ms, totals)
  local fresh = redis.call('ZSCORE', slot.store, content)
  local cost, sooner = 0, false
  if slot.held and (fresh or due_ms == 0) then
    -- @include fold_back
    cost, sooner = fold_back(slot, content, fresh, now_ms)
  end
  if fresh then
    count(totals, 'merged', 1)
    keep_failure(slot, content)
  elseif due_ms > 0 then
    local due_second = math.ceil(due_ms / 1000)
    redis.call('ZADD', slot.retry, string.format('%.0f', due_second * 1000 + retries_left), content)
    count(totals, 'retried', 1)
  else
    redis.call('ZADD', slot.store, whole(retries_left), content)
    count(totals, 'retried', 1)
  end
  redis.call('ZREM', slot.prepare, content)
  return cost, sooner
end
