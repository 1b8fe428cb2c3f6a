-- Whether a driver may read a batch of its query, or refuse rows of it: no newer driver has been here, and the batch is
-- not acked. Returns a refusal or false.
-- @include check_driver
local function check_batch(query, generation, seq)
  local refusal, acked = check_driver(query, generation)
  if not refusal and seq <= acked then
    refusal = redis.error_reply('RMQ_ACKED ' .. acked)
  end
  return refusal
end
