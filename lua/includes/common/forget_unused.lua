-- Deletes the bodies and the last failures of up to 1,000 contents that have left store, unless they are in flight or
-- wait for a retry; where the topic merges, these have values of their own, and all the bodies go.
local function forget_unused(slot, contents)
  local held = redis.call('ZMSCORE', slot.prepare, unpack(contents))
  local waiting = redis.call('ZMSCORE', slot.retry, unpack(contents))
  local unused = {}
  for i, content in ipairs(contents) do
    if not held[i] and not waiting[i] then
      unused[#unused + 1] = content
    end
  end
  local doomed = slot.held and contents or unused
  if #doomed > 0 then
    redis.call('HDEL', slot.body, unpack(doomed))
  end
  if #unused > 0 then
    redis.call('HDEL', slot.error, unpack(unused))
  end
end
