-- Adds `number` messages (score, content, ... from messages[at]) to store; `keep_first`: present ones stay as they are;
-- with `slot.scale` these keep their ages. Returns how many were new. One command per 1,000 messages: the server's
-- cheapest path.
-- @include with_own_age
-- @include whole
local function keep_ages(slot, messages, first, last)
  local names, fresh, changed = {}, {}, {}
  for i = first, last, 2 do
    local name = messages[i + 1]
    if not fresh[name] then
      names[#names + 1] = name
    end
    fresh[name] = messages[i] -- of a content that comes twice, the last one decides
  end
  for i, stored in ipairs(redis.call('ZMSCORE', slot.store, unpack(names))) do
    local score = whole(with_own_age(tonumber(stored), tonumber(fresh[names[i]]), slot.scale))
    if score ~= stored then
      changed[#changed + 1] = score
      changed[#changed + 1] = names[i]
    end
  end
  if #changed > 0 then
    redis.call('ZADD', slot.store, unpack(changed))
  end
end

local function store_batch(slot, keep_first, messages, at, number)
  local new = 0
  for first = at, at + 2 * number - 1, 2000 do
    local last = math.min(first + 1999, at + 2 * number - 1)
    if keep_first then
      new = new + redis.call('ZADD', slot.store, 'NX', unpack(messages, first, last))
    elseif slot.scale then
      local added = redis.call('ZADD', slot.store, 'NX', unpack(messages, first, last))
      if added < (last - first + 1) / 2 then
        keep_ages(slot, messages, first, last)
      end
      new = new + added
    else
      new = new + redis.call('ZADD', slot.store, unpack(messages, first, last))
    end
  end
  return new
end
