-- Gives up to 1,000 messages of a chunk back to store as they were: flat contents and store scores. A fresh copy in
-- store stands as it is, as with `roll_back`: all of a replay may go back, so each command takes them all. That another
-- query has committed one of them is forgotten: in store a later send may merge with it, and would be lost. Where the
-- topic merges, values fold into fresh copies as far as `slot.budget` goes; the other messages wait in retry for the
-- next sweep, each with its retries left, of which `lefts` has one for each.
-- @include count
-- @include contents_of
-- @include whole
local function roll_back_replayed(slot, items, lefts, now_ms, totals)
  if #items == 0 then
    return
  end
  local contents = contents_of(items)
  local twins = redis.call('ZMSCORE', slot.store, unpack(contents))
  local failures = redis.call('HMGET', slot.error, unpack(contents))
  local back, gone, forgotten, waiting = {}, {}, {}, {}
  for n = 1, #contents do
    local content = contents[n]
    if slot.held and twins[n] and slot.budget.bytes <= 0 then
      waiting[#waiting + 1], waiting[#waiting + 2] = whole(math.floor(now_ms / 1000) * 1000 + lefts[n]), content
    elseif slot.held then
      -- @include fold_back
      slot.budget.bytes = slot.budget.bytes - fold_back(slot, content, twins[n], now_ms)
    end
    if twins[n] then
      gone[#gone + 1] = content
    else
      -- in JSON this is no part of a value: there a quote has a backslash before it
      if failures[n] and string.find(failures[n], '"committed":"1"', 1, true) then
        forgotten[#forgotten + 1] = content
      end
      back[#back + 1], back[#back + 2] = items[2 * n], content
    end
  end
  count(totals, 'merged', #gone - #waiting / 2)
  count(totals, 'retried', #back / 2 + #waiting / 2)
  if #waiting > 0 then
    redis.call('ZADD', slot.retry, unpack(waiting))
  end
  if #back > 0 then
    redis.call('ZADD', slot.store, unpack(back))
  end
  for _, names in ipairs({ gone, forgotten }) do
    if #names > 0 then
      redis.call('HDEL', slot.error, unpack(names))
    end
  end
  redis.call('ZREM', slot.prepare, unpack(contents))
end
