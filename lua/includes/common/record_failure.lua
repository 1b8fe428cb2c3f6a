-- Remembers a failure of a message that is delivered again.
local function record_failure(slot, content, failure)
  redis.call('HSET', slot.error, content, cjson.encode(failure))
end
