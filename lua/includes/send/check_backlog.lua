-- Whether a batch (see read_batch) fits into the slot's share of the backlog; those that merge need no room, even where
-- rollbacks have filled it beyond its bound. Returns a refusal or false.
local function check_backlog(store, size, max_backlog, batch)
  local messages, at, number = batch.args, batch.at, batch.number
  local seen, fresh = {}, 0
  for i = at + 1, at + 2 * number, 2 do
    if not seen[messages[i]] and not redis.call('ZSCORE', store, messages[i]) then
      fresh = fresh + 1
    end
    seen[messages[i]] = true
  end
  if fresh > 0 and size + fresh > max_backlog then
    return redis.error_reply('RMQ_FULL ' .. size .. ' ' .. max_backlog)
  end
  return false
end
