-- Gives up to 1,000 messages of a chunk back to store as they were: flat contents and store scores. A fresh copy in
-- store stands as it is, as with `roll_back`: all of a replay may go back, so each command takes them all. That another
-- query has committed one of them is forgotten: in store a later send may merge with it, and would be lost.
-- @include count
-- @include contents_of
local function roll_back_replayed(slot, items, now_ms, totals)
  if #items == 0 then
    return
  end
  local contents = contents_of(items)
  local twins = redis.call('ZMSCORE', slot.store, unpack(contents))
  local failures = redis.call('HMGET', slot.error, unpack(contents))
  local back, merged, forgotten = {}, {}, {}
  for n, content in ipairs(contents) do
    if twins[n] then
      merged[#merged + 1] = content
    else
      -- in JSON this is no part of a value: there a quote has a backslash before it
      if failures[n] and string.find(failures[n], '"committed":"1"', 1, true) then
        forgotten[#forgotten + 1] = content
      end
      back[#back + 1], back[#back + 2] = items[2 * n], content
    end
  end
  count(totals, 'merged', #merged)
  count(totals, 'retried', #back / 2)
  if slot.held then
    -- @include fold_back
    for n, content in ipairs(contents) do
      fold_back(slot, content, twins[n], now_ms)
    end
  end
  if #back > 0 then
    redis.call('ZADD', slot.store, unpack(back))
  end
  for _, gone in ipairs({ merged, forgotten }) do
    if #gone > 0 then
      redis.call('HDEL', slot.error, unpack(gone))
    end
  end
  redis.call('ZREM', slot.prepare, unpack(contents))
end
