-- Since when a failure's JSON says that a message has been failing, nil where it does not say so. A field is found
-- without decoding all of it: a quote within a value would stand behind a backslash.
-- @include count
-- @include whole
local function first_failure(text)
  return string.match(text, '"first_ms"%s*:%s*"(%d+)"')
end

-- Buries up to 1,000 messages of a chunk, as `bury` does one: all of a replay may die, so each command takes them all.
-- `attempts`: how many deliveries each of the contents has had. Its reason is put together from parts that many share.
-- Since when a message has been failing is looked up for the first 250: an earlier failure may be long. Where the topic
-- merges, they die as far as `slot.budget` goes, and the others when their leases end. Returns how many have died.
local function bury_replayed(slot, contents, attempts, first_delivery, failure, now_ms, totals)
  if #contents == 0 then
    return 0
  end
  if slot.held then
    -- @include bury
    -- @include failure_of
    for n, content in ipairs(contents) do
      if slot.budget.bytes <= 0 then
        return n - 1
      end
      local why = failure_of(slot, content, first_delivery[n], now_ms, failure.type, failure.message, totals)
      slot.budget.bytes = slot.budget.bytes - bury(slot, content, why, attempts[n], now_ms, totals)
    end
    return #contents
  end
  local twins, names, nth = redis.call('ZMSCORE', slot.store, unpack(contents)), {}, {}
  for n, content in ipairs(contents) do
    if not twins[n] then
      names[#names + 1], nth[#nth + 1] = content, n
    end
  end
  local number, now, texts = #names, whole(now_ms), {}
  local errors = number > 0 and redis.call('HMGET', slot.error, unpack(names, 1, math.min(number, 250)))
  local bodies = number > 0 and redis.call('HMGET', slot.body, unpack(names))
  local dead, reasons, moved, bodied, bare = {}, {}, {}, {}, {}
  for i, content in ipairs(names) do
    local n = nth[i]
    local first_ms = not first_delivery[n] and errors[i] and first_failure(errors[i]) or now
    local parts = texts[attempts[n]]
    if not parts then
      failure.first_ms, failure.last_ms, failure.attempts = '', now, attempts[n]
      parts = { string.match(cjson.encode(failure), '^(.*"first_ms":")(".*)$') }
      texts[attempts[n]] = parts
    end
    dead[2 * i - 1], dead[2 * i] = now, content
    reasons[2 * i - 1], reasons[2 * i] = content, parts[1] .. first_ms .. parts[2]
    if bodies[i] then
      moved[#moved + 1], moved[#moved + 2] = content, bodies[i]
      bodied[#bodied + 1] = content
    else
      bare[#bare + 1] = content
    end
  end
  count(totals, 'exhausted', #contents - number)
  count(totals, 'buried', number)
  count(totals, 'merged', #contents - (number > 0 and redis.call('ZADD', slot.dead, unpack(dead)) or 0))
  if number > 0 then
    redis.call('HSET', slot.reason, unpack(reasons))
  end
  if #moved > 0 then
    redis.call('HSET', slot.dead_body, unpack(moved))
    redis.call('HDEL', slot.body, unpack(bodied))
  end
  if #bare > 0 then
    redis.call('HDEL', slot.dead_body, unpack(bare))
  end
  redis.call('HDEL', slot.error, unpack(contents))
  redis.call('ZREM', slot.prepare, unpack(contents))
  return #contents
end
