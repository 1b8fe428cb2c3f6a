-- A message that has failed merges into a copy that was sent since. The copy has all its retries, and the failure stays
-- until the content is acked, or leaves the backlog by hand: whoever fails each time and is sent again meanwhile would
-- else leave no trace. Which claims had ended, and whether a query of Spark has committed one, was the old message's.
-- @include read_failure
-- @include record_failure
local function keep_failure(slot, content)
  local failure = read_failure(redis.call('HGET', slot.error, content))
  if failure.last_ms then
    failure.claim, failure.merged, failure.committed = nil, nil, nil
    record_failure(slot, content, failure)
  else
    redis.call('HDEL', slot.error, content)
  end
end
