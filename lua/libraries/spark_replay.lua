-- A chunk of an earlier driver, read once more: what it still holds or can take back is taken over, what has no retries
-- left dies, and what is in other hands is left out. committed_elsewhere serves acks: what became of the rest.
-- @include totals, redis, failures, spark_chunk

local function unheld_of(chunk, held)
  local is_held, missing, lefts = {}, {}, {}
  for _, name in ipairs(held) do
    is_held[name] = true
  end
  for n, name in ipairs(contents_of(chunk.items)) do
    if not is_held[name] then
      missing[#missing + 1] = name
      lefts[#missing] = type(chunk.left) == 'number' and chunk.left or chunk.left[n]
    end
  end
  return missing, lefts
end

-- Whether a hash has for a content what the chunk has copied of it; one by one, since bodies may be large.
local function as_copied(slot, hash, name, bodied)
  return not bodied or redis.call('HGET', hash, name) == redis.call('HGET', slot.query_body, name)
end

-- What has become of those messages of a committed chunk that it holds no more, where nobody has settled them and no
-- send has come since: their last failure is the end of just this claim, or of later ones that ended in the same way,
-- and they have the body that the chunk has copied. `keep_first`: a send of the topic leaves no trace in a message, so
-- none at all may have merged in this slot since. `held`: contents that the chunk holds; `lost`: earlier stamps under
-- which it lost some. Returns the contents that sweeps have put back to store. Those that another worker has by now
-- stay in its hands: their failure notes that Spark has committed them, and if that lease ends, too, they are done.
local function committed_elsewhere(slot, chunk, held, lost, keep_first)
  local missing, lefts = unheld_of(chunk, held)
  if #missing == 0 then
    return {}
  end
  local stamps = { [whole(chunk.stamp)] = true }
  for stamp in string.gmatch(lost, '%d+') do
    stamps[stamp] = true
  end
  local scores = redis.call('ZMSCORE', slot.store, unpack(missing))
  local claims = redis.call('ZMSCORE', slot.prepare, unpack(missing))
  local waiting = redis.call('ZMSCORE', slot.retry, unpack(missing))
  local failures = redis.call('HMGET', slot.error, unpack(missing))
  local bodied = slot.held or redis.call('HLEN', slot.body) + redis.call('HLEN', slot.query_body) > 0
  local merged, found = redis.call('HGET', slot.meta, 'merged') or '0', {}
  for n, name in ipairs(missing) do
    local swept = scores[n] and not claims[n] and tonumber(scores[n]) <= lefts[n]
    local taken = claims[n] and claims[n] % 1000 < lefts[n]
    -- a field of JSON is found without decoding it: a quote within a value would stand behind a backslash
    local ended = (swept or taken) and not waiting[n] and string.match(failures[n] or '', '"claim":"([%d ]+)"') or ''
    local ours = false
    for claim in string.gmatch(ended, '%d+') do
      ours = ours or claim % 1000 == lefts[n] and stamps[whole(math.floor(claim / 1000))]
    end
    if ours and keep_first and not slot.held then
      ours = string.match(failures[n], '"merged":"(%d+)"') == merged
    end
    if ours and as_copied(slot, taken and slot.held or slot.body, name, bodied) then
      if swept then
        found[#found + 1] = name
      else
        local failure = read_failure(failures[n])
        failure.committed = '1'
        redis.call('HSET', slot.error, name, cjson.encode(failure))
      end
    end
  end
  return found
end

-- Gives up to 1,000 messages of a chunk back to store as they were: flat contents and store scores. A fresh copy in
-- store stands as it is, as with `roll_back`: all of a replay may go back, so each command takes them all. That another
-- query has committed one of them is forgotten: in store a later send may merge with it, and would be lost. Where the
-- topic merges, values fold into fresh copies as far as `slot.budget` goes; the other messages wait in retry for the
-- next sweep, each with its retries left, of which `lefts` has one for each.
local function roll_back_replayed(slot, items, lefts, now_ms, totals)
  if #items == 0 then
    return
  end
  local contents = contents_of(items)
  local twins = redis.call('ZMSCORE', slot.store, unpack(contents))
  local failures = redis.call('HMGET', slot.error, unpack(contents))
  -- @include failures
  local back, merged, forgotten, waiting = {}, 0, {}, {}
  for n = 1, #contents do
    local content = contents[n]
    if slot.held and twins[n] and slot.budget.bytes <= 0 then
      waiting[#waiting + 1], waiting[#waiting + 2] = whole(math.floor(now_ms / 1000) * 1000 + lefts[n]), content
    elseif slot.held then
      -- @include merge_fold
      slot.budget.bytes = slot.budget.bytes - fold_back(slot, content, twins[n], now_ms)
    end
    if twins[n] then
      merged = merged + 1
      if failures[n] then
        keep_failure(slot, content)
      end
    else
      -- in JSON this is no part of a value: there a quote has a backslash before it
      if failures[n] and string.find(failures[n], '"committed":"1"', 1, true) then
        forgotten[#forgotten + 1] = content
      end
      back[#back + 1], back[#back + 2] = items[2 * n], content
    end
  end
  tally(totals, 'merged', merged - #waiting / 2)
  tally(totals, 'retried', #back / 2 + #waiting / 2)
  if #waiting > 0 then
    redis.call('ZADD', slot.retry, unpack(waiting))
  end
  if #back > 0 then
    redis.call('ZADD', slot.store, unpack(back))
  end
  if #forgotten > 0 then
    redis.call('HDEL', slot.error, unpack(forgotten))
  end
  redis.call('ZREM', slot.prepare, unpack(contents))
end

-- Since when a failure's JSON says that a message has been failing, nil where it does not say so. A field is found
-- without decoding all of it: a quote within a value would stand behind a backslash.
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
  -- @include failures
  if slot.held then
    -- @include dead
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
    if twins[n] then
      local kind, message = failure.type, failure.message
      record_failure(slot, content, failure_of(slot, content, first_delivery[n], now_ms, kind, message, totals))
    else
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
  tally(totals, 'exhausted', #contents - number)
  tally(totals, 'buried', number)
  tally(totals, 'merged', #contents - (number > 0 and redis.call('ZADD', slot.dead, unpack(dead)) or 0))
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
  if number > 0 then
    redis.call('HDEL', slot.error, unpack(names))
  end
  redis.call('ZREM', slot.prepare, unpack(contents))
  return #contents
end

-- Which of these contents, none of them held, a sweep has put back to store: content -> retries left.
local function swept_back(slot, contents, max_retries)
  local back, candidates = {}, {}
  if #contents == 0 then
    return back
  end
  local claims = redis.call('ZMSCORE', slot.prepare, unpack(contents))
  local scores = redis.call('ZMSCORE', slot.store, unpack(contents))
  for n, content in ipairs(contents) do
    if not claims[n] and scores[n] and tonumber(scores[n]) <= max_retries then
      candidates[#candidates + 1] = content
      back[content] = tonumber(scores[n])
    end
  end
  if #candidates > 0 and redis.call('HLEN', slot.body) + redis.call('HLEN', slot.query_body) > 0 then
    for _, content in ipairs(candidates) do -- one by one: their bodies may be large
      if redis.call('HGET', slot.body, content) ~= redis.call('HGET', slot.query_body, content) then
        back[content] = nil
      end
    end
  end
  return back
end

-- Claims again what a sweep has put back.
local function take_back(slot, contents, back, stamp, totals)
  local claims, claim_scores = {}, scores_from(stamp * 1000)
  for _, content in ipairs(contents) do
    claims[#claims + 1], claims[#claims + 2] = claim_scores[back[content]], content
  end
  if #contents > 0 then
    redis.call('ZADD', slot.prepare, unpack(claims))
    redis.call('ZREM', slot.store, unpack(contents))
    if slot.held then
      -- @include merge_fold
      hold(slot, contents, redis.call('HMGET', slot.body, unpack(contents)))
    end
    tally(totals, 'merged', redis.call('ZREM', slot.retry, unpack(contents)))
  end
end

-- Takes a chunk over from an earlier driver, as one more delivery of what it still holds or can take back: a rollback
-- of the same message is taken, a fresh send is not: it is a message of its own, delivered when it is due. Everything
-- else is in other hands. What has used up its retries dies. Where only the first `share` messages of the batch are
-- replayed, that costs no retry, and the others go back to store as they were; `chunk.put_back` is how many, this
-- time: it is among these that the search goes on if what is left succeeds. Each command takes all messages that it
-- concerns: a chunk has up to 1,000. Returns how many were left out, and buried.
local function replay_chunk(slot, chunk, share, before, now_ms, stamp, max_retries, totals)
  local keep = share and math.max(0, share - before) or #chunk.items
  local held, missing = {}, {}
  local _, names, lefts = held_in_chunk(slot, chunk)
  for n, name in ipairs(names) do
    held[name] = type(lefts) == 'number' and lefts or lefts[n]
  end
  local contents = contents_of(chunk.items)
  for _, content in ipairs(contents) do
    if not held[content] then
      missing[#missing + 1] = content
    end
  end
  local back, put_back, left_out = swept_back(slot, missing, max_retries), 0, 0
  local taken, given_back, given_left, dying, attempts, first, gone = {}, {}, {}, {}, {}, {}, {}
  local kept, kept_left, claims, claim_scores = {}, {}, {}, scores_from(stamp * 1000)
  for n, content in ipairs(contents) do
    local left, score = held[content], chunk.items[2 * n]
    local beyond = n > keep and share ~= 0
    if not left and back[content] and beyond then
      put_back = put_back + 1
    elseif not left and back[content] then
      left = back[content]
      taken[#taken + 1] = content
    end
    if not left then
      left_out = left_out + 1
      gone[#gone + 1] = content
    elseif left == 0 or share == 0 then
      dying[#dying + 1] = content
      first[#dying], attempts[#dying] = left == max_retries, math.max(max_retries - left + 1, chunk.replays)
    elseif beyond then
      given_back[#given_back + 1], given_back[#given_back + 2] = content, score
      given_left[#given_left + 1] = left
    else
      left = share and left or left - 1
      claims[#claims + 1], claims[#claims + 2] = claim_scores[left], content
      kept[#kept + 1], kept[#kept + 2] = content, score
      kept_left[#kept_left + 1] = left
    end
  end
  take_back(slot, taken, back, stamp, totals)
  if #claims > 0 then
    redis.call('ZADD', slot.prepare, 'XX', unpack(claims))
  end
  local message = 'its batch was begun ' .. chunk.replays .. ' times and never finished'
  local failure = { type = 'ReplaysUsedUp', message = message }
  local buried = bury_replayed(slot, dying, attempts, first, failure, now_ms, totals)
  roll_back_replayed(slot, given_back, given_left, now_ms, totals)
  put_back = put_back + #given_back / 2
  for _, list in ipairs({ gone, dying, contents_of(given_back) }) do
    if #list > 0 then
      redis.call('HDEL', slot.query_body, unpack(list))
    end
  end
  tally(totals, 'retried', #kept_left)
  tally(totals, 'delivered', #kept_left)
  chunk.stamp, chunk.items, chunk.left, chunk.put_back = stamp, kept, kept_left, put_back
  return left_out + #dying - buried, buried
end
