-- Tells consumers that something is due at `due_ms` ('0': at once). A hint comes last, and only saves time: a server
-- that refuses it, as one does to users without a right to the channel, changes no answer.
local function hint(publish, wake, due_ms)
  redis.pcall(publish, wake, due_ms)
end
