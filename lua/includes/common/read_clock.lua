-- Redis' time, which alone decides: epoch milliseconds, and the whole second.
-- Before effects replication became the only way, a script had to ask for it before it read the time and then wrote.
local function read_clock()
  if redis.replicate_commands then
    redis.replicate_commands()
  end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000), tonumber(time[1])
end
