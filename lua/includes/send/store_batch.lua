-- Adds `number` messages (score, content, ... from ARGV[at]) to store; `keep_first`: present ones stay as they are.
-- Returns how many were new. One command per 1,000 messages: the server's cheapest path.
local function store_batch(store, keep_first, at, number)
  local new = 0
  for first = at, at + 2 * number - 1, 2000 do
    local last = math.min(first + 1999, at + 2 * number - 1)
    if keep_first then
      new = new + redis.call('ZADD', store, 'NX', unpack(ARGV, first, last))
    else
      new = new + redis.call('ZADD', store, unpack(ARGV, first, last))
    end
  end
  return new
end
