"""One slot under test: a clock that the test moves, seeds, and everything that its keys hold as one value."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import redis
from redis.exceptions import NoScriptError

from rmq import ControlResult, Owner, Redriven, SendResult, Topic
from tests.support.core import (
    NO_OWNER,
    PUBLISH,
    TOPICS_KEY,
    Ack,
    Call,
    ClaimReply,
    Connections,
    EncodedMessage,
    ExtendReply,
    Nack,
    Outcomes,
    ScriptLibrary,
    SlotKeys,
    WholeClaim,
    control,
    figures,
    parse_url,
    sends,
    slot_keys,
    stream_view,
)
from tests.support.core import (
    claims as claiming,
)
from tests.support.core import dead as dead_
from tests.support.one_slot import claim_slot, settle_slot

T = TypeVar("T")
Record = dict[str, Any]

LUA_VARIABLE = "RMQ_TEST_LUA"
"""Folder of Lua scripts to test instead of the repository's; the mutants set it."""

CLOCK_KEY = "rmq:test:clock"
READ_FAKE_CLOCK = f"""
local function read_clock()
  local now_ms = tonumber(redis.call('GET', '{CLOCK_KEY}'))
  return now_ms, math.floor(now_ms / 1000)
end
"""

HINT = "RPUSH"
"""Stands in for PUBLISH: the hints pile up in a list under the channel's name, where a test can see them."""


def with_hints(call: Call[T]) -> Call[T]:
    """Return a call whose wake hints a test can see."""
    return call._replace(args=[HINT if each == PUBLISH else each for each in call.args])


T0 = 1_790_000_000_250
"""Where the fake clock begins: not on a whole second."""

ZSETS = ("store", "prepare", "retry", "dead", "born", "cool")
HASHES = ("body", "meta", "error", "reason", "dead_body", "held")
STATE_IN_META = ("epoch", "ensemble", "token_base", "paused")
CLOCK_IN_META = ("stamp", "lease")
_CONTRACT = (Path(__file__).parents[2] / "docs/internals/contract.md").read_text("utf-8")
_ROWS = re.findall(r"^\| (`.+?) \|", _CONTRACT.partition("### Fields of `meta`")[2].partition("\n#")[0], re.MULTILINE)
NO_TOTALS = frozenset(re.findall(r"`(\w+)`", " ".join(_ROWS)))
"""The fields that the table of the contract names: what else there is in meta has to be a total."""


def scripts_under_test(kind: type[ScriptLibrary] = ScriptLibrary, /, *overrides: str) -> ScriptLibrary:
    """Return a script library of the scripts under test; each is read and linked once."""
    return _library(os.environ.get(LUA_VARIABLE), kind, "\n".join(overrides))


@cache
def _library(folder: str | None, kind: type[ScriptLibrary], overrides: str) -> ScriptLibrary:
    if not folder:
        return kind(overrides)
    with mock.patch("rmq._transport.script_library._lua_folder", return_value=Path(folder)):
        return kind(overrides)


def scripts_with_fake_clock() -> ScriptLibrary:
    """Return the scripts with a `read_clock` that reads `CLOCK_KEY`, and in which few messages count as many."""
    return scripts_under_test(ScriptLibrary, READ_FAKE_CLOCK, "local LEAST_ALIKE = 2\n")


@dataclass(frozen=True)
class SlotState:
    """All keys of a slot. Scores are whole numbers; JSON is decoded; what is absent is empty."""

    store: dict[bytes, int] = field(default_factory=dict[bytes, int])
    prepare: dict[bytes, int] = field(default_factory=dict[bytes, int])
    retry: dict[bytes, int] = field(default_factory=dict[bytes, int])
    dead: dict[bytes, int] = field(default_factory=dict[bytes, int])
    body: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    error: dict[bytes, Record] = field(default_factory=dict[bytes, Record])
    reason: dict[bytes, Record] = field(default_factory=dict[bytes, Record])
    dead_body: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    totals: dict[str, int] = field(default_factory=dict[str, int])
    owner: dict[str, str] = field(default_factory=dict[str, str])
    hints: list[int] = field(default_factory=list[int])
    born: dict[bytes, int] = field(default_factory=dict[bytes, int])
    cool: dict[bytes, int] = field(default_factory=dict[bytes, int])
    held: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    merges: bool = False
    """Whether the topic merges: then what is in flight, or waits for a retry, has its value in `held`."""
    clock: dict[str, str] = field(default_factory=dict[str, str], compare=False)
    """The last stamp, and the lease in force, as they stand in meta; the model checks them."""

    @property
    def unaccounted(self) -> int:
        """0, or messages were lost or invented."""
        total = self.totals.get
        there = len(self.store) + len(self.prepare) + len(self.retry) + len(self.dead)
        gone = sum(total(name, 0) for name in ("acked", "cancelled", "purged", "trimmed", "dropped"))
        return total("accepted", 0) - total("merged", 0) - there - gone

    @property
    def orphans(self) -> dict[str, set[bytes]]:
        """Side entries without the message that they belong to; empty when all is well."""
        flying = self.prepare.keys() | self.retry.keys()
        alive = self.store.keys() | flying
        found = {
            "body": self.body.keys() - (self.store.keys() if self.merges else alive),
            "held": self.held.keys() - flying,
            "error": self.error.keys() - alive,
            "reason": self.reason.keys() - self.dead.keys(),
            "dead_body": self.dead_body.keys() - self.dead.keys(),
        }
        return {name: contents for name, contents in found.items() if contents}


DUMP = """
local reply = {}
for i, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'zset' then
    reply[i] = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'hash' then
    reply[i] = redis.call('HGETALL', key)
  elseif kind == 'list' then
    reply[i] = redis.call('LRANGE', key, 0, -1)
  else
    reply[i] = {}
  end
end
return reply
"""
DUMP_SHA = sha1(DUMP.encode(), usedforsecurity=False).hexdigest()


def dump_keys(keys: SlotKeys) -> tuple[str, ...]:
    """Return the keys of a slot that make up its state."""
    return (*(getattr(keys, name) for name in (*ZSETS, *HASHES)), keys.wake)


def read_state(client: redis.Redis, keys: SlotKeys, merges: bool = False) -> SlotState:
    """Read all keys of a slot at one instant."""
    names = dump_keys(keys)
    try:
        reply: Any = client.evalsha(DUMP_SHA, len(names), *names)
    except NoScriptError:
        reply = client.eval(DUMP, len(names), *names)
    return state_of(reply, merges)


def state_of(reply: Any, merges: bool = False) -> SlotState:
    """Return the state that a reply of `DUMP` shows."""
    zsets = [dict(zip(page[::2], map(int, page[1::2]), strict=True)) for page in reply[:6]]
    body, meta, error, reason, dead_body, held = (dict(zip(page[::2], page[1::2], strict=True)) for page in reply[6:12])
    text = {name.decode(): value.decode() for name, value in meta.items()}
    return SlotState(
        *zsets[:4],
        born=zsets[4],
        cool=zsets[5],
        held=held,
        merges=merges,
        body=body,
        error={content: json.loads(record) for content, record in error.items()},
        reason={content: json.loads(record) for content, record in reason.items()},
        dead_body=dead_body,
        totals={n: int(v) for n, v in text.items() if n not in NO_TOTALS and not n.startswith("told:")},
        owner={name: value for name, value in text.items() if name in STATE_IN_META},
        hints=[int(hint) for hint in reply[12]],
        clock={name: value for name, value in text.items() if name in CLOCK_IN_META},
    )


def write_state(client: redis.Redis, keys: SlotKeys, state: SlotState) -> None:
    """Write a state as it is to a slot without keys; `client` may be a pipeline."""
    for name in ZSETS:
        if scores := getattr(state, name):
            client.zadd(getattr(keys, name), scores)
    for name in ("body", "dead_body", "held"):
        if bodies := getattr(state, name):
            client.hset(getattr(keys, name), mapping=bodies)
    for name in ("error", "reason"):
        if records := getattr(state, name):
            texts = {content: json.dumps(record) for content, record in records.items()}
            client.hset(getattr(keys, name), mapping=texts)
    meta: dict[Any, Any] = {**state.totals, **state.owner, **state.clock}
    if meta:
        client.hset(keys.meta, mapping=meta)


class SlotUnderTest:
    """Slot 0 of a topic, with every call as a method and time standing still.

    Args:
        url: Where Redis is.
        topic: The topic.
        scripts: The scripts; by default those with the fake clock.
    """

    def __init__(self, url: str, topic: Topic, scripts: ScriptLibrary | None = None) -> None:
        self.connections = Connections(parse_url(url), scripts=scripts or scripts_with_fake_clock())
        self.client = redis.Redis.from_url(url)
        self._url = url
        self.topic = topic
        self.keys = slot_keys(topic.name, 0)
        self.set_clock(T0)

    def close(self) -> None:
        self.connections.close()
        self.client.close()

    def set_clock(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.client.set(CLOCK_KEY, now_ms)

    def advance(self, ms: int) -> None:
        self.set_clock(self.now_ms + ms)

    @property
    def now_s(self) -> int:
        return self.now_ms // 1000

    def claim_score(self, left: int, ago_s: float = 0) -> int:
        """The claim score of a delivery claimed `ago_s` seconds ago with `left` retries left."""
        return (self.now_ms - int(ago_s * 1000)) * 1000 + left

    def state(self) -> SlotState:
        return read_state(self.client, self.keys, self.topic.merge is not None)

    def seed(self, state: SlotState) -> SlotState:
        """Write a state as it is; `accepted` is set so that the accounts are right. Returns it as it stands then."""
        totals = {"accepted": 0, **state.totals}
        totals["accepted"] -= replace(state, totals=totals).unaccounted
        write_state(self.client, self.keys, replace(state, totals=totals))
        return self.state()

    def dump(self) -> dict[bytes, bytes | None]:
        """Every key of the slot as Redis serialises it; hashes by their fields, whose order a mere read may change."""
        names: Any = self.client.keys(f"*{self.topic.name}_*")
        return {name: self._dump(name) for name in names}

    def _dump(self, name: bytes) -> bytes | None:
        if self.client.type(name) == b"hash":
            fields: Any = self.client.hgetall(name)
            return repr(sorted(fields.items())).encode()
        found: Any = self.client.dump(name)
        return found

    def as_user(self, name: str) -> redis.Redis:
        """A client of its own that is logged in as a user without a password."""
        client = redis.Redis.from_url(self._url, protocol=2, single_connection_client=True)
        client.execute_command("AUTH", name, "none")
        return client

    # the calls

    def run(self, call: Call[T]) -> T:
        return self.connections.run(call)

    def send(
        self, *messages: tuple[bytes, int] | tuple[bytes, int, bytes | None], detailed: bool = False
    ) -> SendResult:
        """Send (content, score) or (content, score, body)."""
        encoded = [
            EncodedMessage(0, message[0], message[1], message[2] if len(message) > 2 else None) for message in messages
        ]
        return self.run(with_hints(sends.send_calls(self.topic)(0, encoded, detailed)))

    def claim(
        self,
        limit: int = 1_000,
        *,
        start: int = 0,
        acks: Sequence[Ack] = (),
        nacks: Sequence[Nack] = (),
        whole: Sequence[WholeClaim] = (),
        sweep_limit: int = claiming.SWEEP_LIMIT,
        owner: Owner = NO_OWNER,
    ) -> ClaimReply:
        call = claim_slot(
            self.topic,
            0,
            limit,
            owner=owner,
            start=start,
            outcomes=Outcomes(acks=acks, nacks=nacks, whole=whole),
            sweep_limit=sweep_limit,
        )
        return self.run(call)

    def ack(self, *acks: Ack, owner: Owner = NO_OWNER) -> tuple[bytes, ...]:
        return self.run(settle_slot(self.topic, 0, Outcomes(acks), owner)).stale

    def nack(self, *nacks: Nack, owner: Owner = NO_OWNER) -> tuple[bytes, ...]:
        return self.run(with_hints(settle_slot(self.topic, 0, Outcomes(nacks=nacks), owner))).stale

    def extend(self, *claims: Ack, owner: Owner = NO_OWNER) -> ExtendReply:
        return self.run(claiming.extend(self.topic, 0, claims, owner))

    def cancel(self, *contents: bytes) -> list[ControlResult]:
        return self.run(control.cancel(self.topic, 0, contents))

    def reschedule(self, kind: str, value: int, *contents: bytes) -> list[ControlResult]:
        return self.run(with_hints(control.reschedule(self.topic, 0, contents, (kind, value))))

    def redrive(
        self,
        kind: str,
        value: int,
        *contents: bytes,
        overwrite: bool = False,
        limit: int = 1_000,
        died_ms: Sequence[int] | None = None,
    ) -> list[Redriven]:
        call = dead_.redrive(
            self.topic,
            0,
            (kind, value),
            overwrite=overwrite,
            contents=contents or self.longest_dead(limit),
            died_ms=died_ms,
        )
        return self.run(with_hints(call))

    def purge(self, *contents: bytes) -> int:
        return self.run(dead_.purge_dead(self.topic, 0, contents or self.longest_dead(1_000)))

    def longest_dead(self, limit: int) -> list[bytes]:
        found: Any = self.client.zrange(self.keys.dead, 0, limit - 1) if limit else []
        return found


def check_topic(client: redis.Redis, topic: str) -> None:
    """Check that a topic has only the keys of its slots, and that each slot's accounts and side entries are right."""
    found: Any = client.keys(f"*{topic}*")
    slots: set[int] = set()
    for name in (
        name.decode() for name in found if not name.startswith((b"rmq:history", b"spark", b"sent:", b"rate:"))
    ):
        number = re.sub(r".*_(\d+)}?", r"\1", name)
        known = astuple(slot_keys(topic, int(number))) if number.isdecimal() else ()
        assert name in known, f"{name} is no key of a slot of {topic}"
        slots.add(int(number))
    for slot in sorted(slots):
        keys = slot_keys(topic, slot)
        state = read_state(client, keys)
        assert state.unaccounted == 0, f"slot {slot} of {topic}: {state}"
        assert state.orphans == {}, f"slot {slot} of {topic}"
        unknown = state.totals.keys() - {*figures.TOTALS, *stream_view.STREAM_TOTALS}
        assert not unknown, f"{unknown}: fields of meta that docs/internals/contract.md does not name"


def forget_topic(client: redis.Redis, topic: str) -> None:
    """Delete all that a topic has in Redis."""
    found: Any = client.keys(f"*{topic}*")
    if found:
        client.delete(*found)
    client.hdel(TOPICS_KEY, topic)
