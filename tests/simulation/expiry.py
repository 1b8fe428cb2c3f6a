"""Lets keys expire in virtual time: Redis itself counts real time, of which a simulated day takes seconds.

Scripts that set a time to live get a `redis` of their own, which notes beside each key when it ends.
"""

from __future__ import annotations

from tests.support.slots import CLOCK_KEY

ENDS_KEY = "rmq:test:ends"

NEVER_S = 10_000_000
"""What Redis itself is told: a key has a time to live, which does not end."""

VIRTUAL_EXPIRY = f"""
local redis = (function(real)
  local function note(key, ms) real.call('ZADD', '{ENDS_KEY}', real.call('GET', '{CLOCK_KEY}') + ms, key) end

  local function run(how, name, ...)
    local args = {{ ... }}
    if name == 'EXPIRE' or name == 'PEXPIRE' then
      local reply = how('EXPIRE', args[1], {NEVER_S})
      if reply == 1 then
        note(args[1], args[2] * (name == 'EXPIRE' and 1000 or 1))
      end
      return reply
    end
    if name == 'SET' and (args[3] == 'EX' or args[3] == 'PX') then
      note(args[1], args[4] * (args[3] == 'EX' and 1000 or 1))
      return how('SET', args[1], args[2], 'EX', {NEVER_S})
    end
    return how(name, ...)
  end

  return setmetatable({{
    call = function(...) return run(real.call, ...) end,
    pcall = function(...) return run(real.pcall, ...) end,
  }}, {{ __index = real }})
end)(redis)
"""

TICK = f"""
redis.call('SET', '{CLOCK_KEY}', ARGV[1])
local over = redis.call('ZRANGEBYSCORE', '{ENDS_KEY}', '-inf', ARGV[1])
for _, key in ipairs(over) do
  redis.call('ZREM', '{ENDS_KEY}', key)
  if redis.call('PTTL', key) > 0 then -- else it was made anew, or is gone
    redis.call('DEL', key)
  end
end
return {{ redis.call('ZRANGE', '{ENDS_KEY}', 0, 0, 'WITHSCORES')[2] or 'inf', #over }}
"""
"""Sets the time, and drops what has expired; returns when the next key expires, in ms, and how many were looked at."""

TICK_COMMANDS = ("evalsha", "zrangebyscore", "zrange")
KEY_COMMANDS = ("zrem", "pttl", "del")
"""Commands that a tick, and each key that it looks at, cost, besides SET."""


def sets_expiry(text: str) -> bool:
    """Return whether a script sets times to live."""
    return "EXPIRE'" in text or "'EX'" in text or "'PX'" in text
