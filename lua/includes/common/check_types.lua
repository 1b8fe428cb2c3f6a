-- Reads sorted sets and hashes: a key of a foreign type fails the script before its first write.
local function check_types(zsets, hashes)
  for _, zset in ipairs(zsets) do
    redis.call('ZCARD', zset)
  end
  for _, hash in ipairs(hashes) do
    redis.call('HLEN', hash)
  end
end
