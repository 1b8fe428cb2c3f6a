"""What `bounds` measures: a case, the slot that is filled for it, and short ways to write fills and calls."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from rmq import Topic, TopicType
from tests.lua.cases import Example, script_of
from tests.lua.every_case import QUEUES
from tests.support import core
from tests.support.core import Call, EncodedMessage, Script, claims
from tests.support.one_slot import claim_group

MIB = 1_048_576
FAR = 2**52
"""A priority, or a time, that every script takes."""
ME = core.Member("g", "me")

_FILL_HASH = """
local value = string.rep('x', tonumber(ARGV[1]))
for i = 2, #ARGV do redis.call('HSET', KEYS[1], ARGV[i], value) end
"""
_FILL_STREAM = """
local body, ids = string.rep('x', tonumber(ARGV[1])), {}
for i = 1, ARGV[2] do
  local fields = {'content', string.format('%020d', i)}
  if #body > 0 then fields = {'content', fields[2], 'body', body} end
  ids[i] = redis.call('XADD', KEYS[1], '*', unpack(fields))
end
return ids
"""


def failure(first_ms: int = 1) -> str:
    """Return a failure as it is stored."""
    return json.dumps({"first_ms": str(first_ms), "last_ms": "2", "type": "ValueError", "message": "no" * 200})


@dataclass
class Place:
    """A slot that is filled for a measurement.

    Attributes:
        client: redis-py client of the server.
        topic: The definition.
        body_bytes: Size of each body; 0 for none.
        most: Most messages with bodies.
    """

    client: Any
    topic: Topic
    body_bytes: int
    most: int
    now_ms: int = field(default_factory=lambda: int(time.time() * 1000))

    @cached_property
    def keys(self) -> core.SlotKeys:
        """The keys of slot 0."""
        return core.slot_keys(self.topic.name, 0)

    @cached_property
    def own(self) -> core.GroupKeys:
        """The keys of the group on slot 0."""
        return core.group_keys(self.topic.name, 0, ME.group)

    def go_to(self, slot: int) -> None:
        """Fill another slot from now on."""
        self.__dict__["keys"] = core.slot_keys(self.topic.name, slot)
        self.__dict__["own"] = core.group_keys(self.topic.name, slot, ME.group)

    def names(self, number: int, prefix: str = "c") -> list[bytes]:
        """Return contents of 20 bytes: as many, or as many as may have bodies."""
        number = min(number, self.most) if self.body_bytes else number
        return [f"{prefix}{index:019}".encode() for index in range(number)]

    def messages(self, number: int, score: int = FAR) -> list[EncodedMessage]:
        """Return a batch as a producer sends it at most: up to 1 MiB and one more."""
        body, number = (b"x" * self.body_bytes, 2) if self.body_bytes else (None, number)
        return [EncodedMessage(0, f"s{index:019}".encode(), score, body) for index in range(number)]

    def zset(self, key: str, names: Sequence[bytes], score: int, step: int = 1) -> None:
        """Put contents into a sorted set."""
        self.client.zadd(key, {name: score + step * index for index, name in enumerate(names)})

    def bodies(self, key: str, names: Sequence[bytes]) -> None:
        """Give contents bodies in a hash, where they have any."""
        for first in range(0, len(names) if self.body_bytes else 0, 250):
            self.client.eval(_FILL_HASH, 1, key, self.body_bytes, *names[first : first + 250])

    def failures(self, names: list[bytes], key: str = "") -> list[bytes]:
        """Give contents a failure, by default as their last one."""
        self.client.hset(key or self.keys.error, mapping=dict.fromkeys(names, failure()))
        return names

    def born(self, names: list[bytes]) -> list[bytes]:
        """Let contents have outlived their time to live."""
        self.zset(self.keys.born, names, self.now_ms - 10**6)
        return names

    def store(self, number: int, score: int = FAR - claims.MAX_BATCH, prefix: str = "c") -> list[bytes]:
        """Put messages into the backlog; PRIORITY: those of high numbers first."""
        names = self.names(number, prefix)
        self.zset(self.keys.store, names, self.now_ms - 1_000_000 if self.topic.type.timed else score)
        self.bodies(self.keys.body, names)
        return names

    def held(self, number: int, left: int = 16, age_ms: int = 0, prefix: str = "h") -> list[tuple[bytes, int]]:
        """Put claims into prepare, all of one call; return contents and claim scores."""
        names, score = self.names(number, prefix), (self.now_ms - age_ms) * 1000 + left
        self.zset(self.keys.prepare, names, score, 0)
        self.bodies(self.keys.body, names)
        return [(name, score) for name in names]

    def failed(self, number: int, left: int, age_ms: int = 0, prefix: str = "h") -> list[tuple[bytes, int]]:
        """Put claims that have failed before into prepare; return contents and claim scores."""
        found = self.held(number, left, age_ms, prefix)
        self.failures([name for name, _ in found])
        return found

    def waiting(self, number: int) -> None:
        """Put retries that are due."""
        names = self.names(number, "r")
        self.zset(self.keys.retry, names, (self.now_ms // 1000 - 10) * 1000 + 3, 0)
        self.bodies(self.keys.body, names)
        self.failures(names)

    def dead(self, number: int, prefix: str = "d") -> list[bytes]:
        """Put dead messages with reasons and bodies."""
        names = self.names(number, prefix)
        self.zset(self.keys.dead, names, self.now_ms - 1_000_000)
        self.bodies(self.keys.dead_body, names)
        return self.failures(names, self.keys.reason)

    def entries(self, number: int) -> list[str]:
        """Append entries to the stream; return their ids."""
        number, ids = min(number, self.most) if self.body_bytes else number, list[str]()
        if self.body_bytes:
            self.client.hset(self.keys.meta, "largest", self.body_bytes)
        for first in range(0, number, 100):
            ids += map(bytes.decode, self.append(min(100, number - first), self.body_bytes))
        return ids

    def append(self, number: int, body_bytes: int = 0) -> list[bytes]:
        """Append entries with bodies of a size at once; return their ids."""
        return self.client.eval(_FILL_STREAM, 1, self.keys.store, body_bytes, number)

    def joined(self, number: int, small: int = 0) -> list[str]:
        """Let a group join, and append entries behind some without a body; return their ids."""
        self.client.xgroup_create(self.keys.store, ME.group, "0", mkstream=True)
        self.append(small)
        return self.entries(number)

    def pending(self, number: int, *, times: int = 1, idle_ms: int = 0, holder: str = ME.consumer) -> list[str]:
        """Append entries that the group has read; return their ids."""
        ids = self.joined(number)
        for _ in ids[::100]:
            self.client.xreadgroup(ME.group, holder, {self.keys.store: ">"}, count=100)
        for first in range(0, len(ids), 1_000):
            part, more = ids[first : first + 1_000], {"idle": idle_ms, "retrycount": times, "justid": True}
            self.client.xclaim(self.keys.store, ME.group, holder, 0, part, **more)
        return ids

    def dead_entries(self, number: int, *, trimmed: bool = False) -> list[str]:
        """Bury entries of the group."""
        ids = self.pending(number, times=99, idle_ms=10**8)
        while self.client.xpending(self.keys.store, ME.group)["pending"]:
            run(self.client, claim_group(self.topic, 0, ME, 1))
        if trimmed:
            self.client.xtrim(self.keys.store, maxlen=0, approximate=False)
        return ids


def run(client: Any, call: Call[Any]) -> Any:
    """Run a call by the text of its script, and parse its reply."""
    script = core.default_scripts()[call.script]
    return call.parse(client.eval(script.text, len(call.keys), *call.keys, *call.args))


FILLED: Any = object()
"""Among the arguments of a call: what its slot was filled with."""
Fill = Callable[[Place], Any]
Make = Callable[[Place, Any], Call[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """A script at its bound.

    Attributes:
        script: Name of the script.
        what: What it has to do.
        fill: Fills a slot; what it returns is for the call.
        make: Returns the call.
        kind: Type of the topic.
        most: Most messages with large bodies.
        sizes: Whether bodies of 1 MiB make a difference at all.
        bound_ms: How much it may cost; by default what its bodies allow.
        settings: Of the topic.
    """

    script: str
    what: str
    fill: Fill
    make: Make
    kind: TopicType = TopicType.PRIORITY
    most: int = 64
    sizes: bool = True
    bound_ms: float | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])

    def build(self, place: Place) -> Call[Any]:
        """Fill the slot and return the call."""
        return self.make(place, self.fill(place))


def case(
    script: str, what: str, fill: Fill, make: Make, kind: TopicType = TopicType.PRIORITY, *,
    most: int = 64, sizes: bool = True, **settings: Any,
) -> Case:  # fmt: skip
    """Return a case. Priorities are plain, unless it says otherwise: they cost the same in all scripts but two."""
    settings = {"ties": "any", **settings} if kind is TopicType.PRIORITY else settings
    return Case(script, what, fill, make, kind, most, sizes, settings=settings)


small = partial(case, sizes=False)
"""Returns a case to which bodies make no difference."""


def on(function: Callable[..., Call[Any]], *args: Any, **options: Any) -> Make:
    """Return what makes a call of the slot; `FILLED` becomes what the slot was filled with."""

    def make(place: Place, filled: Any) -> Call[Any]:
        words = (filled if each is FILLED else each for each in args)
        named = {name: filled if each is FILLED else each for name, each in options.items()}
        return function(place.topic, 0, *words, **named)

    return make


def by_examples(tables: Iterable[Case], fill: Fill) -> Iterator[Case]:
    """Yield the examples of scripts that no table has, if a slot or the contents that fill it bound their work."""
    measured = {each.script for each in tables}
    for name, example in QUEUES.items():
        script = core.default_scripts()[script_of(name)]
        if script.name not in measured and script.args.tail in (None, "contents"):
            many, make = script.args.tail is not None, partial(_example, example, script)
            yield case(script.name, name, fill if many else empty, make, example.kind, sizes=many, **example.settings)


def _example(example: Example, script: Script, place: Place, contents: list[bytes]) -> Call[Any]:
    call = example.make(place.topic, example.unseeded)
    return call._replace(args=[*call.args[: len(script.args.required)], *contents]) if script.args.tail else call


def empty(place: Place) -> None:
    """Fill nothing."""
