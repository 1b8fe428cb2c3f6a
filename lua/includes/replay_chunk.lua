-- Takes a chunk over from an earlier driver, as one more delivery of what it still holds or can take back: a rollback
-- of the same message is taken, a fresh send is not: it is a message of its own, delivered when it is due. Everything
-- else is in other hands. What has used up its retries or its replays dies. Returns how many were left out, and buried.
local function replay_chunk(slot, chunk, now_ms, now_s, max_retries, max_replays, totals)
  local held = {}
  local _, names, lefts = held_in_chunk(slot, chunk)
  for n, name in ipairs(names) do
    held[name] = type(lefts) == 'number' and lefts or lefts[n]
  end
  chunk.replays = chunk.replays + 1
  local kept, kept_left, left_out, buried = {}, {}, 0, 0
  for i = 1, #chunk.items, 2 do
    local content = chunk.items[i]
    local left = held[content]
    if not left and not redis.call('ZSCORE', slot.prepare, content) then
      local back = tonumber(redis.call('ZSCORE', slot.store, content) or max_retries + 1)
      local same = redis.call('HGET', slot.body, content) == redis.call('HGET', slot.query_body, content)
      if back <= max_retries and same then
        left = back
        redis.call('ZADD', slot.prepare, string.format('%.0f', now_s * 1000 + left), content)
        redis.call('ZREM', slot.store, content)
        count(totals, 'merged', redis.call('ZREM', slot.retry, content))
      end
    end
    if not left then
      left_out = left_out + 1
      redis.call('HDEL', slot.query_body, content)
    elseif left == 0 or chunk.replays > max_replays then
      record_failure(slot, content, left == max_retries, now_ms, 'ReplaysUsedUp',
        'its batch was begun ' .. chunk.replays .. ' times and never finished')
      bury(slot, content, max_retries - left + 1, now_ms, totals)
      redis.call('HDEL', slot.query_body, content)
      buried = buried + 1
    else
      redis.call('ZADD', slot.prepare, 'XX', string.format('%.0f', now_s * 1000 + left - 1), content)
      kept[#kept + 1] = content
      kept[#kept + 1] = chunk.items[i + 1]
      kept_left[#kept_left + 1] = left - 1
    end
  end
  count(totals, 'retried', #kept_left)
  count(totals, 'delivered', #kept_left)
  chunk.second, chunk.items, chunk.left, chunk.lost = now_s, kept, kept_left, 0
  return left_out, buried
end
