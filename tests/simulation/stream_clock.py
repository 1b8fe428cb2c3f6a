"""Lets the scripts of stream topics live in virtual time, too.

Redis itself writes times into streams: ids of entries, and when a delivery began. These scripts get a `redis` of their
own. It gives entries ids of the virtual time, and keeps beside each group when its deliveries began.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha1

from tests.simulation.expiry import VIRTUAL_EXPIRY, sets_expiry
from tests.support.core import Script, ScriptLibrary
from tests.support.slots import CLOCK_KEY

TIMES_KEY = "rmq:test:times:"

VIRTUAL_STREAMS = f"""
local redis = (function(real)
  local function now() return real.call('GET', '{CLOCK_KEY}') end
  local function times_of(store, group) return '{TIMES_KEY}' .. real.sha1hex(store .. ' ' .. group) end

  local function next_id(store)
    local ms, sequence = tonumber(now()), 0
    local about = real.call('EXISTS', store) == 1 and real.call('XINFO', 'STREAM', store) or {{}}
    for i = 1, #about, 2 do
      if about[i] == 'last-generated-id' then
        local last_ms, last = string.match(about[i + 1], '^(%d+)-(%d+)$')
        if tonumber(last_ms) >= ms then
          ms, sequence = tonumber(last_ms), tonumber(last) + 1
        end
      end
    end
    return string.format('%.0f-%.0f', ms, sequence)
  end

  local after = {{
    XREADGROUP = function(args, reply)
      local times = times_of(args[7], args[2])
      for _, entry in ipairs(reply and reply[1][2] or {{}}) do
        real.call('HSET', times, entry[1], now())
      end
    end,
    XCLAIM = function(args)
      for i = 5, #args do
        if string.find(args[i], '^%d+%-%d+$') then
          real.call('HSET', times_of(args[1], args[2]), args[i], now())
        end
      end
    end,
    XACK = function(args) real.call('HDEL', times_of(args[1], args[2]), unpack(args, 3)) end,
    XPENDING = function(args, reply)
      for _, row in ipairs(args[3] and reply or {{}}) do
        local began = tonumber(real.call('HGET', times_of(args[1], args[2]), row[1]) or 0)
        row[3] = math.max(0, tonumber(now()) - began) -- as Redis does where its clock was set back
      end
    end,
    XGROUP = function(args)
      if args[1] == 'DESTROY' then
        real.call('DEL', times_of(args[2], args[3]))
      end
    end,
  }}

  local function run(how, name, ...)
    local args = {{ ... }}
    if name == 'XADD' and args[2] == '*' then
      args[2] = next_id(args[1])
    end
    local reply = how(name, unpack(args))
    if after[name] and not (type(reply) == 'table' and reply.err) then
      after[name](args, reply)
    end
    return reply
  end

  return setmetatable({{
    call = function(...) return run(real.call, ...) end,
    pcall = function(...) return run(real.pcall, ...) end,
  }}, {{ __index = real }})
end)(redis)
"""


class SimulatedScripts(ScriptLibrary):
    """The scripts, of which those of stream topics have the `redis` above, and some that of `expiry`."""

    def _build(self, name: str, text: str) -> Script:
        script = super()._build(name, text)
        own = VIRTUAL_EXPIRY if sets_expiry(script.text) else ""
        own += VIRTUAL_STREAMS if name.startswith("stream_") else ""
        if not own:
            return script
        full = own + script.text
        return replace(script, text=full, sha=sha1(full.encode(), usedforsecurity=False).hexdigest())
