-- Takes a chunk over from an earlier driver, as one more delivery of what it still holds or can take back: a rollback
-- of the same message is taken, a fresh send is not: it is a message of its own, delivered when it is due. Everything
-- else is in other hands. What has used up its retries dies. Where only the first `share` messages of the batch are
-- replayed, that costs no retry, and the others go back to store as they were; `chunk.put_back` is how many, this
-- time: it is among these that the search goes on if what is left succeeds. Each command takes all messages that it
-- concerns: a chunk has up to 1,000. Returns how many were left out, and buried.
-- @include count
-- @include whole
-- @include held_in_chunk
-- @include bury_replayed
-- @include roll_back_replayed

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
      -- @include hold
      hold(slot, contents, redis.call('HMGET', slot.body, unpack(contents)))
    end
    count(totals, 'merged', redis.call('ZREM', slot.retry, unpack(contents)))
  end
end

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
  count(totals, 'retried', #kept_left)
  count(totals, 'delivered', #kept_left)
  chunk.stamp, chunk.items, chunk.left, chunk.put_back = stamp, kept, kept_left, put_back
  return left_out + #dying - buried, buried
end
