-- What has become of those messages of a committed chunk that it holds no more, where nobody has settled them and no
-- send has come since: their last failure is the end of just this claim, or of later ones that ended in the same way,
-- and they have the body that the chunk has copied. `keep_first`: a send of the topic leaves no trace in a message, so
-- none at all may have merged in this slot since. `held`: contents that the chunk holds; `lost`: earlier stamps under
-- which it lost some. Returns the contents that sweeps have put back to store. Those that another worker has by now
-- stay in its hands: their failure notes that Spark has committed them, and if that lease ends, too, they are done.
-- @include contents_of
-- @include read_failure
-- @include whole
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
