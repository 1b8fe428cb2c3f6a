-- Sets fields of a hash, names and values in turn. Redis keeps a small hash as a list, in which each field is searched
-- for from the beginning; a value above `hash-max-listpack-value` (64 bytes; 6.2: `hash-max-ziplist-value`) makes it a
-- table, and one it stays until it is gone. So a new one begins with such a value, which then goes again.
local function fill_hash(hash, fields)
  if redis.call('EXISTS', hash) == 0 then
    redis.call('HSET', hash, '', string.rep(' ', 65), unpack(fields))
    redis.call('HDEL', hash, '')
  else
    redis.call('HSET', hash, unpack(fields))
  end
end
