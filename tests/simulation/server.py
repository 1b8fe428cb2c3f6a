"""The real Redis of the simulation: its clock, its hints, and how it forgets its last writes.

One server serves all seeds. Time comes from a key, as in the tests of the scripts, so that it is virtual. Before a
restart that forgets, the data is copied to another database at the moment from which on all is forgotten, and back at
the restart.
"""

from __future__ import annotations

import re
import socket
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha1
from typing import Any

import hiredis

from rmq import Topic, TopicType
from rmq._io.wire import NOTHING, Argument, ReplyError, pack
from tests.simulation.expiry import KEY_COMMANDS, TICK, TICK_COMMANDS, sets_expiry
from tests.simulation.steps import Hold, SlotState, Step, Steps
from tests.simulation.stream_steps import LOOK_AT_STREAMS, GroupState, StreamSteps
from tests.simulation.world import World
from tests.support.core import OWNERS_KEYS, ScriptLibrary
from tests.support.servers import RedisServer
from tests.support.slots import CLOCK_KEY

CONFIG = ("hash-max-ziplist-entries 100000", "hash-max-ziplist-value 1000000", "databases 2")
"""So that a hash keeps the order of its fields: else it depends on a number that the server draws when it starts."""

_COPY = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  redis.call('COPY', key, key, 'DB', 1)
end
"""

_LOOK = """
local slots = {}
for _, store in ipairs(ARGV) do
  local found = redis.call('HMGET', 'meta{' .. store .. '}', 'accepted', 'merged', 'acked', 'cancelled', 'purged',
    'trimmed', 'dropped')
  local function total(i) return tonumber(found[i] or 0) end
  local there = redis.call('ZCARD', store)
  for _, section in ipairs({'prepare', 'retry', 'dead'}) do
    there = there + redis.call('ZCARD', section .. '{' .. store .. '}')
  end
  local gone = total(3) + total(4) + total(5) + total(6) + total(7)
  local wrong = ''
  if total(1) - total(2) ~= there + gone then
    wrong = store .. ': accepted ' .. total(1) .. ', merged ' .. total(2) .. ', there ' .. there .. ', gone ' .. gone
  end
  slots[#slots + 1] = { wrong, redis.call('HGET', 'meta{' .. store .. '}', 'epoch') or '0',
    redis.call('ZRANGE', 'prepare{' .. store .. '}', 0, -1, 'WITHSCORES') }
end
return slots
"""
"""Looks at slots after a script: whether the accounts are wrong, the epoch, and what is in flight."""

_LOOK_SHA = sha1(_LOOK.encode(), usedforsecurity=False).hexdigest()

_TICK_SHA = sha1(TICK.encode(), usedforsecurity=False).hexdigest()

_STREAMS_SHA = sha1(LOOK_AT_STREAMS.encode(), usedforsecurity=False).hexdigest()

LONGEST_S = 30
"""How long the real server may take for a command."""

UNTRACED = frozenset({"INFO", "CONFIG"})
"""What the real server answers differently each time, and nobody acts on."""

_TAG = re.compile(rb"\{([A-Za-z0-9._-]+_\d+)\}$")


class Server:
    """A real Redis under virtual time.

    Args:
        redis: The server.
        scripts: The scripts, which read the clock that `execute` sets.
    """

    def __init__(self, redis: RedisServer, scripts: ScriptLibrary) -> None:
        self.redis = redis
        self.scripts = scripts
        self.world: World | None = None
        self._lease_ms: Mapping[bytes, int] = {}
        self._stream_lease_ms: Mapping[bytes, int] = {}
        self.calls = 0
        self.ticks = Counter[str]()
        """Commands that letting keys expire has cost."""
        self._names = {scripts[name].sha.encode(): name for name in scripts.names()}
        self._main = _Line(str(redis.socket_path))
        self._scripted = _Line(str(redis.socket_path))  # where hints come as well, before the reply to their script
        self._scripted.call("HELLO", 3)
        self._scripted.send(pack("PSUBSCRIBE", "wake{*", OWNERS_KEYS["wake"]))
        self._scripted.call("PING")
        self._loaded = False
        self._clock_ms = 0
        self._expiring = {name for name in scripts.names() if sets_expiry(scripts.text(name))}
        self._next_expiry_ms = 0.0
        """When a key expires next, on Redis' clock; 0 where that is not known."""
        self._steps, self._stream_steps = Steps({}), StreamSteps({})

    @property
    def holds(self) -> Mapping[tuple[bytes, bytes], list[Hold]]:
        """When which contents were claimed, by store and content."""
        return self._steps.holds

    def close(self) -> None:
        self._main.close()
        self._scripted.close()

    def begin(self, world: World, topics: Iterable[Topic], *, warm: bool) -> None:
        """Begin a seed with nothing in it.

        Args:
            world: Whose clock rules.
            topics: The topics whose slots are looked at after each script.
            warm: Whether the scripts are loaded.
        """
        leases = [(topic.type is TopicType.STREAM, topic.name.encode(), topic.lease_ms) for topic in topics]
        self.world, self._clock_ms, self._next_expiry_ms = world, 0, float("inf")
        self._lease_ms = {name: lease_ms for stream, name, lease_ms in leases if not stream}
        self._stream_lease_ms = {name: lease_ms for stream, name, lease_ms in leases if stream}
        self._steps, self._stream_steps = Steps(self._lease_ms), StreamSteps(self._stream_lease_ms)
        self._main.call("FLUSHALL")
        self._load_scripts(warm=warm)
        self._scripted.take_pushed()

    def name_of(self, command: list[bytes]) -> str:
        """Return the name of a script, or of a plain command."""
        name = command[0].upper()
        return self._names.get(command[1], "unknown script") if name == b"EVALSHA" else name.decode()

    def execute(self, command: list[bytes], name: str, doing: Any) -> tuple[Any, list[tuple[bytes, bytes]]]:
        """Carry out a command at the present virtual time; return its reply and the hints that it published."""
        world = self.world
        assert world is not None
        self.calls += 1
        now_ms = world.now_ms
        parts = self._tick(now_ms)
        before = len(parts)
        parts.append(pack(*command))
        if stores := self._stores(command, self._lease_ms):
            parts.append(pack("EVALSHA", _LOOK_SHA, 0, *stores))
        elif streams := self._stores(command, self._stream_lease_ms):
            parts.append(pack("EVALSHA", _STREAMS_SHA, 0, *streams))
        looks, publishes = len(parts) > before + 1, command[0] == b"PUBLISH"
        if publishes:
            parts.append(pack("PING"))  # what a connection publishes to itself may come behind the reply
        line = self._scripted if command[0] == b"EVALSHA" or publishes else self._main
        replies = line.pipeline(parts)
        reply = replies[before]
        if before and replies[0] != b"OK":
            self._next_expiry_ms = float(replies[0][0])
            self.ticks.update(dict.fromkeys(TICK_COMMANDS, 1))
            self.ticks.update(dict.fromkeys(KEY_COMMANDS, replies[0][1]))
        if name in self._expiring:
            self._next_expiry_ms = 0.0
        if looks:
            step = Step.of(command, name, now_ms)
            for what in self._seen(step, stores, replies[-1]) if stores else self._seen_of(step, streams, replies[-1]):
                world.failed(what)
        if doing is not None and not isinstance(reply, ReplyError):
            doing.executed(command, name, reply, world)
        hints = [(channel, text) for _, _, channel, text in self._scripted.take_pushed()]
        shown = b"" if name in UNTRACED else b" ".join(command[2:])
        world.trace(name, shown, "" if name in UNTRACED else reply)
        return reply, hints

    def _tick(self, now_ms: int) -> list[bytes]:
        """Return what sets the time, if it is another one; the script of it also drops keys that have expired."""
        if now_ms == self._clock_ms:
            return []
        self._clock_ms = now_ms
        if now_ms < self._next_expiry_ms:
            return [pack("SET", CLOCK_KEY, now_ms)]
        return [pack("EVALSHA", _TICK_SHA, 0, now_ms)]

    def _seen(self, step: Step, stores: list[bytes], looks: list[Any]) -> Iterator[str]:
        """Find what must not be in slots after a script."""
        for store, (wrong, epoch, claims) in zip(stores, looks, strict=True):
            if wrong:
                yield f"accounts: after {step.name}: {wrong.decode()}"
            state = SlotState(int(epoch), dict(zip(claims[::2], claims[1::2], strict=True)))
            yield from self._steps.follow(step, store, state)

    def _seen_of(self, step: Step, streams: list[bytes], looks: list[Any]) -> Iterator[str]:
        """Find what must not be in slots of streams after a script."""
        for store, (wrong, groups) in zip(streams, looks, strict=True):
            if wrong:
                yield f"accounts: after {step.name}: {wrong.decode()}"
            for group, epoch, rows in groups:
                yield from self._stream_steps.follow(step, store, group, GroupState.of(epoch, rows))

    def call(self, *args: Argument) -> Any:
        """Carry out a command beside the simulation: for checks and preparations."""
        return self._main.call(*args)

    # --- restarts

    def remember(self) -> None:
        """Copy all data: what is written from now on may be forgotten."""
        self._main.call("EVAL", _COPY, 0)

    def restart(self, *, forgets: bool) -> None:
        """Restart: scripts are gone, and what was written since `remember` where it is forgotten."""
        if forgets:
            self._main.call("SWAPDB", 0, 1)
            self._steps.forget()
            self._stream_steps.forget()
        self._main.pipeline([pack("SELECT", 1), pack("FLUSHDB"), pack("SELECT", 0)])
        self._clock_ms, self._next_expiry_ms = 0, 0.0
        self._load_scripts(warm=False)

    def _load_scripts(self, *, warm: bool) -> None:
        """Have exactly these scripts loaded: those that look, and if `warm` those of the library."""
        if warm and self._loaded:
            return
        self._loaded = warm
        self._main.call("SCRIPT", "FLUSH")
        wanted = [_LOOK, LOOK_AT_STREAMS, TICK, *(self.scripts.text(name) for name in self.scripts.names() if warm)]
        self._main.pipeline([pack("SCRIPT", "LOAD", text) for text in wanted])

    def _stores(self, command: list[bytes], topics: Mapping[bytes, int]) -> list[bytes]:
        """Return the store keys of the slots of some topics that a script call touches."""
        if command[0] != b"EVALSHA" or not topics:
            return []
        keys = command[3 : 3 + int(command[2])]
        found = {match.group(1) for key in keys if (match := _TAG.search(key))}
        return sorted(tag for tag in found if tag.rpartition(b"_")[0] in topics)


class _Line:
    """A connection to the real server."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        # a timeout of Python's own would cost a call of the system more each time
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", LONGEST_S, 0))
        self._socket.connect(path)
        self._reader: Any = hiredis.Reader(replyError=ReplyError, notEnoughData=NOTHING)
        self._pushed: list[Any] = []

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def read(self) -> Any:
        reader = self._reader
        while True:
            reply = reader.gets()
            if reply is NOTHING:
                data = self._socket.recv(262_144)
                if not data:
                    raise ConnectionError("the real Redis has closed the connection")
                reader.feed(data)
            elif isinstance(reply, hiredis.PushNotification):
                self._pushed.append(reply)
            else:
                return reply

    def take_pushed(self) -> list[Any]:
        """Return what came besides replies since the last call."""
        pushed, self._pushed = self._pushed, []
        return pushed

    def pipeline(self, requests: list[bytes]) -> list[Any]:
        self.send(b"".join(requests))
        return [self.read() for _ in requests]

    def call(self, *args: Argument) -> Any:
        self.send(pack(*args))
        reply = self.read()
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def close(self) -> None:
        self._socket.close()
