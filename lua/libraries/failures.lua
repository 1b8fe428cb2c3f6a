-- The last failure of a content: JSON in the hash `error`; in `reason` when it dies. Invariant: it stays until the
-- content is acked, dies, expires, is dropped, or leaves the backlog by hand.
-- @include totals

-- What is known of a failure, as a table; empty where there is none, or no failure's JSON: a value that can't be read
-- must hold up neither a sweep nor the other dead. Fields that another version has added stay.
local function read_failure(text)
  local found = {}
  local fine, value = pcall(cjson.decode, text or '')
  if fine and type(value) == 'table' then
    for name, each in pairs(value) do
      if type(name) == 'string' and type(each) == 'string' then
        found[name] = each
      end
    end
  end
  return found
end

-- Splits an error type from the attempt that follows it where the topic keeps attempts: lines with how many to keep and
-- with the attempt as JSON, then the traceback. Returns the type, the attempts, newest first, each a line that begins
-- with its time, and the traceback; where there is no attempt, those of `history` and nil.
local function with_attempt(kind, now, history)
  local plain, most, attempt, trace = string.match(kind, '^([^\n]*)\n(%d+)\n([^\n]*)\n(.*)$')
  if not plain then
    return kind, history, nil
  end
  local lines = { now .. ' ' .. attempt }
  for line in string.gmatch(history or '', '[^\n]+') do
    if #lines < tonumber(most) then
      lines[#lines + 1] = line
    end
  end
  return plain, table.concat(lines, '\n'), trace
end

-- Why a delivery failed, as a table, and since when its message has been failing. A first delivery starts afresh. Where
-- its content has failed before, and was sent again before it was acked, `again` says how often that was so, and
-- `refailed` counts it; not where `totals` is nil. Also returns the failure before it of the same message, an empty
-- table where there is none.
local function failure_of(slot, content, first_delivery, now_ms, kind, message, totals)
  local now = string.format('%.0f', now_ms)
  local earlier = (totals or not first_delivery) and read_failure(redis.call('HGET', slot.error, content)) or {}
  local again = earlier.again
  if first_delivery then
    if earlier.last_ms then
      again = string.format('%.0f', (tonumber(again) or 0) + 1)
      tally(totals, 'refailed', 1)
    end
    earlier = {}
  end
  local plain, history, trace = with_attempt(kind, now, earlier.history)
  return {
    first_ms = earlier.first_ms or now, last_ms = now, type = plain, message = message, again = again,
    history = history, trace = trace,
  }, earlier
end

-- Remembers a failure of a message that is delivered again.
local function record_failure(slot, content, failure)
  redis.call('HSET', slot.error, content, cjson.encode(failure))
end

-- A message that has failed merges into a copy that was sent since. The copy has all its retries, and the failure stays
-- until the content is acked, or leaves the backlog by hand: whoever fails each time and is sent again meanwhile would
-- else leave no trace. Which claims had ended, and whether a query of Spark has committed one, was the old message's.
local function keep_failure(slot, content)
  local failure = read_failure(redis.call('HGET', slot.error, content))
  if failure.last_ms then
    failure.claim, failure.merged, failure.committed = nil, nil, nil
    record_failure(slot, content, failure)
  else
    redis.call('HDEL', slot.error, content)
  end
end
