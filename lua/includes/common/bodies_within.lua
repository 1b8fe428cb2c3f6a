-- The bodies of the first of up to 1,000 contents, as many as have `most_bytes` in all with contents; one at least.
-- Returns them, false for one that has none, and how many contents they are of; no bodies where none has one.
local function bodies_within(hash, contents, most_bytes)
  local bodied = #contents > 0 and redis.call('HLEN', hash) > 0
  local number, left = 0, most_bytes
  for i, content in ipairs(contents) do
    left = left - #content - (bodied and redis.call('HSTRLEN', hash, content) or 0)
    if left < 0 and i > 1 then
      break
    end
    number = i
  end
  return bodied and redis.call('HMGET', hash, unpack(contents, 1, number)) or {}, number
end
