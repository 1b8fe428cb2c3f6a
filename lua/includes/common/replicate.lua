-- Writes a hash and leaves it as it was, be it there or not. What a durable script answers has to be as safe as what it
-- writes, and since Redis 7.2 WAIT and WAITAOF wait for the writes of their own connection only: a path that changes
-- nothing, since another call was faster, writes this. It begins with a removal, so that it works at maxmemory.
local function replicate(hash)
  redis.call('HDEL', hash, 'written')
  redis.call('HSET', hash, 'written', '1')
  redis.call('HDEL', hash, 'written')
end
