-- Deletes the bodies of up to 1,000 contents that have just left prepare, except where a fresh copy is in store.
local function drop_bodies(slot, contents)
  local fresh = redis.call('ZMSCORE', slot.store, unpack(contents))
  local gone = {}
  for i = 1, #contents do
    if not fresh[i] then
      gone[#gone + 1] = contents[i]
    end
  end
  if #gone > 0 then
    redis.call('HDEL', slot.body, unpack(gone))
  end
end
