-- Redis keeps a small sorted set as a list, in which each ZADD searches for the member, and then for its place, from
-- the beginning. A member above `zset-max-listpack-value`, 64 bytes (6.2: `zset-max-ziplist-value`), makes it a
-- skiplist, and one it stays until it is gone. So who adds many members begins with such a one, of a name that none of
-- them has, and removes it by its score, which no other member has. The removal comes first, too: without the right to
-- it nothing is added. Returns whether there is something to remove.
local function begin_skiplist(set, number, score, name)
  if number < 32 or type(redis.pcall('ZREMRANGEBYSCORE', set, score, score)) == 'table' then
    return false
  end
  return redis.call('ZADD', set, 'NX', score, name) == 1
end

local function end_skiplist(set, score)
  redis.call('ZREMRANGEBYSCORE', set, score, score)
end
