-- Gives those of the messages `messages[from]` to `messages[to]` (score, content, ...) that are in store their new
-- priorities; they keep their ages.
-- @include with_own_age
-- @include whole
local function keep_ages(slot, messages, from, to)
  local names, fresh, changed = {}, {}, {}
  for i = from, to, 2 do
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
