-- Takes a chunk over from an earlier driver, as one more delivery of what it still holds or can take back: a rollback
-- of the same message is taken, a fresh send is not: it is a message of its own, delivered when it is due. Everything
-- else is in other hands. What has used up its retries dies. Where only the first `share` messages of the batch are
-- replayed, that costs no retry, and the others go back to store as they were; `chunk.put_back` is how many, this time:
-- it is among these that the search goes on if what is left succeeds. Returns how many were left out, and buried.
local function replay_chunk(slot, chunk, share, before, now_ms, now_s, max_retries, totals)
  local keep = share and math.max(0, share - before) or #chunk.items
  local held = {}
  local _, names, lefts = held_in_chunk(slot, chunk)
  for n, name in ipairs(names) do
    held[name] = type(lefts) == 'number' and lefts or lefts[n]
  end
  local kept, kept_left, left_out, buried, put_back = {}, {}, 0, 0, 0
  for i = 1, #chunk.items, 2 do
    local content = chunk.items[i]
    local left = held[content]
    if not left and not redis.call('ZSCORE', slot.prepare, content) then
      local back = tonumber(redis.call('ZSCORE', slot.store, content) or max_retries + 1)
      local same = redis.call('HGET', slot.body, content) == redis.call('HGET', slot.query_body, content)
      if back <= max_retries and same and (i + 1) / 2 > keep and share ~= 0 then
        put_back = put_back + 1
      elseif back <= max_retries and same then
        left = back
        redis.call('ZADD', slot.prepare, string.format('%.0f', now_s * 1000 + left), content)
        redis.call('ZREM', slot.store, content)
        count(totals, 'merged', redis.call('ZREM', slot.retry, content))
      end
    end
    if not left then
      left_out = left_out + 1
      redis.call('HDEL', slot.query_body, content)
    elseif left == 0 or share == 0 then
      record_failure(slot, content, left == max_retries, now_ms, 'ReplaysUsedUp',
        'its batch was begun ' .. chunk.replays .. ' times and never finished')
      bury(slot, content, math.max(max_retries - left + 1, chunk.replays), now_ms, totals)
      redis.call('HDEL', slot.query_body, content)
      buried = buried + 1
    elseif (i + 1) / 2 > keep then
      roll_back(slot, content, chunk.items[i + 1], 0, totals)
      redis.call('HDEL', slot.query_body, content)
      put_back = put_back + 1
    else
      left = share and left or left - 1
      redis.call('ZADD', slot.prepare, 'XX', string.format('%.0f', now_s * 1000 + left), content)
      kept[#kept + 1] = content
      kept[#kept + 1] = chunk.items[i + 1]
      kept_left[#kept_left + 1] = left
    end
  end
  count(totals, 'retried', #kept_left)
  count(totals, 'delivered', #kept_left)
  chunk.second, chunk.items, chunk.left, chunk.put_back = now_s, kept, kept_left, put_back
  return left_out, buried
end
