-- A removal that removes nothing, before a call for several slots writes to any of them: where the server takes no
-- writes, all of the call is refused. Returns that refusal or nil; a key of another type is its own slot's trouble.
local function write_refusal(zset)
  local probe = redis.pcall('ZREMRANGEBYRANK', zset, 1, 0)
  if type(probe) == 'table' and probe.err and not string.find(probe.err, 'WRONGTYPE', 1, true) then
    return probe
  end
end
