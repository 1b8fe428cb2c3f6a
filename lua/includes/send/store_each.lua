-- Like store_batch, one message at a time, where outcomes are asked for or the slot has bodies: the body goes with the
-- entry. Returns how many were new, and per message '1' for new or '0' for merged. `keep_first` is about scores: of the
-- bodies the newest stands, and a message without one leaves the one that is there. A body above 4 KiB ends what
-- `body_bound` of meta promises to claims.
-- @include with_own_age
-- @include only_trace
-- @include whole
-- Whether the body of a message that merges is the one that stands from now on.
local function replaces(hash, content, body)
  if not only_trace(body, 1) then
    return true
  end
  local stored = redis.call('HGET', hash, content)
  return not stored or only_trace(stored, 1)
end

local function store_each(slot, keep_first, batch)
  local store, body, messages, at, number = slot.store, slot.body, batch.args, batch.at, batch.number
  local bodies, largest = {}, 0
  for i = at + 2 * number, batch.last, 2 do
    bodies[tonumber(messages[i])] = messages[i + 1]
    largest = math.max(largest, #messages[i + 1])
  end
  if largest > 4096 then
    redis.call('HDEL', slot.meta, 'body_bound')
  end
  local had_bodies = redis.call('HLEN', body) > 0
  local new, outcomes = 0, {}
  for i = 1, number do
    local score, content = messages[at + 2 * i - 2], messages[at + 2 * i - 1]
    local added
    if keep_first then
      added = redis.call('ZADD', store, 'NX', score, content)
    else
      local stored = slot.scale and redis.call('ZSCORE', store, content)
      if stored then
        score = whole(with_own_age(tonumber(stored), tonumber(score), slot.scale))
      end
      added = redis.call('ZADD', store, score, content)
    end
    new = new + added
    outcomes[i] = added
    if bodies[i] and (added == 1 or replaces(body, content, bodies[i])) then
      redis.call('HSET', body, content, bodies[i])
      had_bodies = true
    elseif added == 1 and had_bodies then
      redis.call('HDEL', body, content) -- of an earlier message, in flight or waiting
    end
  end
  return new, table.concat(outcomes)
end
