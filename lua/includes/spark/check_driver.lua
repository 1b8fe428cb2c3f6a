-- Whether a newer driver of the query has been here. Returns a refusal or false, and the number of the last acked
-- batch.
local function check_driver(query, generation)
  local state = redis.call('HMGET', query, 'generation', 'acked')
  if tonumber(state[1] or 0) > generation then
    return redis.error_reply('RMQ_DRIVER ' .. state[1])
  end
  return false, tonumber(state[2] or 0)
end
