"""Every script at its bound: how a slot is filled for it, and the call. `bounds` measures them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rmq import Fixed, Merge, RangeMergeMessage, Retention, Sliding, Sum, Topic, TopicType, WhenFull
from rmq._admin import search
from rmq._admin.history import KEEP_S, MINUTES
from rmq._admin.notices import AT_ONCE
from rmq._broker import claims as claiming
from rmq._broker import control as steering
from rmq._broker import dead as dead_
from rmq._broker import sends as sending
from rmq._broker import shared as limits
from rmq._broker import shared as workers
from rmq._broker import streams, viewing
from rmq._broker.claims import MAX_BATCH, NACK_BATCH, PIGGYBACKED_NACKS, WHOLE_BATCH, ClaimPart, Nack, Outcomes
from rmq._broker.dead import Turn
from rmq._broker.keys import (
    HISTORY_LOCK_KEY,
    TOPICS_KEY,
    WORKER_INFOS_KEY,
    WORKERS_KEY,
    GroupKeys,
    SlotKeys,
    group_keys,
    history_key,
    slot_keys,
)
from rmq._broker.registry import MAX_DEFINITION_BYTES, READ_AT_ONCE
from rmq._broker.sends import MergedSends, QueueSends
from rmq._broker.stream_broker import RESUME_BATCH
from rmq._broker.streams import Member
from rmq._claiming.claim_plan import CLAIM_WEIGHT, MOST_WEIGHT
from rmq._claiming.outcome_batches import FREED_BYTES
from rmq._model.batches import Batch, EncodedMessage
from rmq._model.encoding import Encoder
from rmq._sending.pipeline import JOINED_MESSAGES, JOINED_SLOTS
from rmq._transport.call import Call
from rmq.spark import calls as spark_calls
from rmq.spark.calls import Driver, Reading
from rmq.spark.marks import Mark, send_once
from rmq.spark.refusal_calls import How, refuse_contents
from rmq.spark.source import log_calls
from tests.support.one_slot import claim_group, claim_slot, settle_group, settle_slot

MIB = 1_048_576
FAR = 2**52
"""A priority, or a time, that every script takes."""
PORTION = 4
"""Bodies of 1 MiB that the nacks of one call may bury."""
FAILURE = json.dumps({"first_ms": "1", "last_ms": "2", "type": "ValueError", "message": "no" * 200})
ME, DRIVER = Member("g", "me"), Driver("q", 1)
TURN, TOLD_BEFORE = Turn("n", "me", 60_000), {"told:n": "1 1 me"}

_FILL_ZSET = "for i = 1, #ARGV, 2 do redis.call('ZADD', KEYS[1], ARGV[i], ARGV[i + 1]) end"
_FILL_HASH = """
local value = string.rep('x', tonumber(ARGV[1]))
for i = 2, #ARGV do redis.call('HSET', KEYS[1], ARGV[i], value) end
"""
_FILL_STREAM = """
local body = string.rep('x', tonumber(ARGV[1]))
for i = 1, ARGV[2] do
  local fields = {'content', string.format('%020d', i)}
  if #body > 0 then fields = {'content', fields[2], 'body', body} end
  redis.call('XADD', KEYS[1], '*', unpack(fields))
end
"""


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
    def keys(self) -> SlotKeys:
        """The keys of slot 0."""
        return slot_keys(self.topic.name, 0)

    @cached_property
    def own(self) -> GroupKeys:
        """The keys of the group on slot 0."""
        return group_keys(self.topic.name, 0, ME.group)

    @property
    def body(self) -> bytes | None:
        """A body, or none."""
        return b"x" * self.body_bytes if self.body_bytes else None

    def names(self, number: int, prefix: str = "c") -> list[bytes]:
        """Return contents of 20 bytes: as many, or as many as may have bodies."""
        number = min(number, self.most) if self.body_bytes else number
        return [f"{prefix}{index:019}".encode() for index in range(number)]

    def zset(self, key: str, names: Sequence[bytes], score: int, step: int = 1) -> None:
        """Put contents into a sorted set."""
        for first in range(0, len(names), 1_000):
            part = names[first : first + 1_000]
            pairs = [each for index, name in enumerate(part, first) for each in (score + step * index, name)]
            self.client.eval(_FILL_ZSET, 1, key, *pairs)

    def hash(self, key: str, names: Sequence[bytes], size: int) -> None:
        """Give contents values of a size in a hash; none where the size is 0."""
        if size:
            for first in range(0, len(names), 250):
                self.client.eval(_FILL_HASH, 1, key, size, *names[first : first + 250])

    def bodies(self, names: Sequence[bytes]) -> None:
        """Give contents bodies."""
        self.hash(self.keys.body, names, self.body_bytes)

    def store(self, number: int, score: int = FAR - MAX_BATCH, prefix: str = "c") -> list[bytes]:
        """Put messages into the backlog; PRIORITY: those of high numbers first."""
        names = self.names(number, prefix)
        self.zset(self.keys.store, names, self.now_ms - 1_000_000 if self.topic.type.timed else score)
        self.bodies(names)
        return names

    def held(self, number: int, left: int = 16, age_ms: int = 0, prefix: str = "h") -> list[tuple[bytes, int]]:
        """Put claims into prepare, all of one call; return contents and claim scores."""
        names, score = self.names(number, prefix), (self.now_ms - age_ms) * 1000 + left
        self.zset(self.keys.prepare, names, score, 0)
        self.bodies(names)
        return [(name, score) for name in names]

    def failures(self, names: Sequence[bytes]) -> None:
        """Give contents a last failure."""
        self.client.hset(self.keys.error, mapping=dict.fromkeys(names, FAILURE))

    def waiting(self, number: int) -> None:
        """Put retries that are due."""
        names = self.names(number, "r")
        self.zset(self.keys.retry, names, (self.now_ms // 1000 - 10) * 1000 + 3, 0)
        self.bodies(names)
        self.failures(names)

    def dead(self, number: int, prefix: str = "d") -> list[bytes]:
        """Put dead messages with reasons and bodies."""
        names = self.names(number, prefix)
        self.zset(self.keys.dead, names, self.now_ms - 1_000_000)
        self.client.hset(self.keys.reason, mapping=dict.fromkeys(names, FAILURE))
        self.hash(self.keys.dead_body, names, self.body_bytes)
        return names

    def entries(self, number: int) -> list[str]:
        """Append entries to the stream; return their ids."""
        number = min(number, self.most) if self.body_bytes else number
        if self.body_bytes:
            self.client.hset(self.keys.meta, "largest", self.body_bytes)
        for first in range(0, number, 100):
            self.client.eval(_FILL_STREAM, 1, self.keys.store, self.body_bytes, min(100, number - first))
        return [entry_id.decode() for entry_id in self._ids()]

    def pending(self, number: int, *, times: int = 1, idle_ms: int = 0, holder: str = ME.consumer) -> list[str]:
        """Append entries that the group has read; return their ids."""
        self.client.xgroup_create(self.keys.store, ME.group, "0", mkstream=True)
        ids = self.entries(number)
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

    def messages(self, number: int, score: int = FAR) -> list[EncodedMessage]:
        """Return a batch as a producer sends it at most: up to 1 MiB and one more."""
        names = [f"s{index:019}".encode() for index in range(2 if self.body_bytes else number)]
        return [EncodedMessage(0, name, score, self.body) for name in names]

    def _ids(self) -> Iterable[bytes]:
        first = "-"
        while page := self.client.eval(_IDS, 1, self.keys.store, first):
            yield from page
            first = f"({page[-1].decode()}"


_IDS = """
local ids = {}
for i, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', 16)) do ids[i] = entry[1] end
return ids
"""


def run(client: Any, call: Call[Any]) -> Any:
    """Run a call by the text of its script, and parse its reply."""
    from rmq._transport.script_library import default_scripts

    script = default_scripts()[call.script]
    return call.parse(client.eval(script.text, len(call.keys), *call.keys, *call.args))


Build = Callable[[Place], Call[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """A script at its bound.

    Attributes:
        script: Name of the script.
        what: What it has to do.
        build: Fills a slot and returns the call.
        kind: Type of the topic.
        settings: Of the topic.
        most: Most messages with large bodies.
        sizes: Whether bodies of 1 MiB make a difference at all.
        bound_ms: How much it may cost; by default what its bodies allow.
    """

    script: str
    what: str
    build: Build
    kind: TopicType
    settings: dict[str, Any]
    most: int
    sizes: bool
    bound_ms: float | None = None


CASES: list[Case] = []
P, F, R, S = TopicType.PRIORITY, TopicType.FIXED_TIME, TopicType.RANGE_MERGE, TopicType.STREAM


def case(
    script: str, what: str, kind: TopicType = P, *, most: int = 64, sizes: bool = True, **settings: Any
) -> Callable[[Build], Build]:
    """Note a case. Priorities are plain, unless it says otherwise: they cost the same in all scripts but two."""
    if kind is P:
        settings.setdefault("ties", "any")

    def note(build: Build) -> Build:
        CASES.append(Case(script, what, build, kind, settings, most, sizes))
        return build

    return note


# --- sending


def _send(place: Place) -> Call[Any]:
    return sending.send_calls(place.topic)(0, place.messages(MAX_BATCH), True)


case("send", "1,000 by priority")(_send)


@case("send", "as many slots and messages as a call has", sizes=False, slots=1_024, ties="oldest")
def _send_many(place: Place) -> Call[Any]:
    slots = range(JOINED_SLOTS)
    batches = [Batch.of([message._replace(slot=slot) for message in place.messages(JOINED_MESSAGES)]) for slot in slots]
    return QueueSends(place.topic).joined(batches, True)


@case("send", "1,000 that merge, with another priority", ties="oldest")
def _send_aged(place: Place) -> Call[Any]:
    place.store(MAX_BATCH, score=2**40)
    return sending.send_calls(place.topic)(0, place.messages(MAX_BATCH, 1_000), True)


case("send", "1,000 at a time", F)(_send)
case("send", "1,000 after a time", R)(lambda place: sending.send_calls(
    place.topic)(0, place.messages(MAX_BATCH, 5_000), True))  # fmt: skip
case("send", "1,000 with a delay", F)(lambda place: sending.send_calls(
    place.topic)(0, place.messages(MAX_BATCH, -5_000), True))  # fmt: skip


@case("send", "1,000, of which it drops as many", ttl="1m", max_backlog=1, when_full=WhenFull.DROP)
def _send_dropping(place: Place) -> Call[Any]:
    place.store(MAX_BATCH, score=1_000)
    return _send(place)


def _sums(place: Place) -> list[EncodedMessage]:
    """Put sums into the backlog; return as many sends that fold into them."""
    messages = [Encoder(place.topic).one(RangeMergeMessage(name, body=1)) for name in place.names(MAX_BATCH, "c")]
    place.zset(place.keys.store, [message.content for message in messages], FAR)
    place.client.hset(place.keys.body, mapping={message.content: message.body or b"" for message in messages})
    return messages


def part_call(place: Place, messages: Sequence[EncodedMessage]) -> Call[Any]:
    """Build the call of `send_many` on a topic that merges: it may take the first messages only."""
    calls = sending.send_calls(place.topic)
    assert isinstance(calls, MergedSends)
    return calls(0, messages, True, partly="each")


@case("send_merged", "1,000 that fold", R, merge=Merge(Sum(), window=Sliding("5s", max_wait="1m")))
def _send_merged(place: Place) -> Call[Any]:
    return part_call(place, _sums(place))


@case("send_merged", "1,000 that fold, a chunk of Spark", R, merge=Merge(Sum(), window=Fixed("5s")))
def _spark_send_merged(place: Place) -> Call[Any]:
    return send_once(place.topic, 0, _sums(place), Mark("q", 1, 0, 1_000, 0, "d"))


@case("send", "1,000, a chunk of Spark")
def _spark_send(place: Place) -> Call[Any]:
    return send_once(place.topic, 0, place.messages(MAX_BATCH), Mark("q", 1, 0, 1_000, 0, "d"))


# --- claiming


@case("claim", "1,000 due")
def _claim(place: Place) -> Call[Any]:
    place.store(MAX_BATCH)
    return claim_slot(place.topic, 0, MAX_BATCH)


@case("claim", "1,000 due, behind 4,000 twins in flight")
def _claim_behind(place: Place) -> Call[Any]:
    place.store(MAX_BATCH, score=10**6)
    twins = place.held(4_000)
    place.zset(place.keys.store, [name for name, _ in twins], FAR - 5_000)
    return claim_slot(place.topic, 0, MAX_BATCH)


@case("claim", "1,000 rolled back")
def _claim_retries(place: Place) -> Call[Any]:
    names = place.store(MAX_BATCH)
    place.zset(place.keys.store, names, 3, 0)
    place.waiting(10)
    return claim_slot(place.topic, 0, MAX_BATCH)


@case("claim", "expired claims that go back")
def _sweep(place: Place) -> Call[Any]:
    held = place.held(2_000, 5, 10**8)
    place.failures([name for name, _ in held])
    return claim_slot(place.topic, 0, 0)


@case("claim", "expired claims that die")
def _sweep_dying(place: Place) -> Call[Any]:
    held = place.held(2_000, 0, 10**8)
    place.failures([name for name, _ in held])
    return claim_slot(place.topic, 0, 0)


@case("claim", "retries that are due")
def _due_retries(place: Place) -> Call[Any]:
    place.waiting(2_000)
    return claim_slot(place.topic, 0, 0)


@case("claim", "messages that outlived their time to live", F, ttl="1s")
def _expire_timed(place: Place) -> Call[Any]:
    place.store(2_000)
    return claim_slot(place.topic, 0, 0)


@case("claim", "messages that outlived their time to live", ttl="1s")
def _expire(place: Place) -> Call[Any]:
    place.zset(place.keys.born, place.store(2_000), place.now_ms - 10**6)
    return claim_slot(place.topic, 0, 0)


@case("claim", "times of what has left the backlog", sizes=False, ttl="1s")
def _expire_gone(place: Place) -> Call[Any]:
    place.zset(place.keys.born, place.names(20_000), place.now_ms - 10**6)
    return claim_slot(place.topic, 0, 0)


@case("claim", "too many dead", max_dead=1, most=256)
def _trim_dead(place: Place) -> Call[Any]:
    place.dead(2_000)
    return claim_slot(place.topic, 0, 0)


def _nacks(held: Sequence[tuple[bytes, int]], verb: str = "retry", number: int = 1_000) -> list[Nack]:
    return [Nack(name, score, verb, number, "ValueError", "no" * 200) for name, score in held[:NACK_BATCH]]


@case("claim", "everything at once", F, most=256, ttl="1s", max_dead=1)
def _claim_everything(place: Place) -> Call[Any]:
    place.store(4_000)
    for prefix, left in (("a", 5), ("b", 0)):
        place.failures([name for name, _ in place.held(1_000, left, 10**8, prefix)])
    place.waiting(1_000)
    place.dead(2_000)
    acks = place.held(MAX_BATCH, prefix="e")
    nacked = place.held(PORTION if place.body_bytes else PIGGYBACKED_NACKS, 0, prefix="f")
    return claim_slot(place.topic, 0, MAX_BATCH, outcomes=Outcomes(acks=acks, nacks=_nacks(nacked)))


@case("claim", "as many slots as a call has", most=16, slots=1_024)
def _claim_slots(place: Place) -> Call[Any]:
    slots = MOST_WEIGHT // (CLAIM_WEIGHT + 10)
    for slot in range(slots):
        place.__dict__["keys"] = slot_keys(place.topic.name, slot)
        place.held(20, 5, 10**8)
        place.held(20, 0, 10**8, "b")
        place.store(20, 10**6)
    return claiming.queue_claims(place.topic)([ClaimPart(slot, 10) for slot in range(slots)])


# --- settling


@case("settle", "1,000 acks", most=FREED_BYTES // MIB)
def _ack(place: Place) -> Call[Any]:
    held = place.held(MAX_BATCH)
    place.failures([name for name, _ in held])
    return settle_slot(place.topic, 0, Outcomes(held))


@case("settle", "256 whole claims", sizes=False)
def _ack_whole(place: Place) -> Call[Any]:
    held = [(place.names(10, f"w{index:03}"), place.now_ms * 1000 - index * 1000 + 5) for index in range(WHOLE_BATCH)]
    for names, score in held:
        place.zset(place.keys.prepare, names, score, 0)
    return settle_slot(place.topic, 0, Outcomes(whole=[(score, 10) for _, score in held]))


@case("settle", "to retry")
def _nack(place: Place) -> Call[Any]:
    held = place.held(NACK_BATCH, 5)
    place.failures([name for name, _ in held])
    return settle_slot(place.topic, 0, Outcomes(nacks=_nacks(held)))


@case("settle", "to bury", most=PORTION)
def _nack_bury(place: Place) -> Call[Any]:
    held = place.held(NACK_BATCH, 5)
    place.failures([name for name, _ in held])
    return settle_slot(place.topic, 0, Outcomes(nacks=_nacks(held, "bury")))


@case("settle", "to release")
def _nack_release(place: Place) -> Call[Any]:
    return settle_slot(place.topic, 0, Outcomes(nacks=_nacks(place.held(NACK_BATCH, 5), "release", 5)))


@case("extend", "1,000")
def _extend(place: Place) -> Call[Any]:
    return claiming.extend(place.topic, 0, place.held(MAX_BATCH))


# --- steering


def _waiting_too(place: Place) -> list[bytes]:
    names = place.store(claiming.CONTROL_BATCH)
    place.zset(place.keys.retry, names, (place.now_ms // 1000 + 99) * 1000 + 3, 0)
    place.failures(names)
    return names


@case("cancel", "the most")
def _cancel(place: Place) -> Call[Any]:
    return steering.cancel(place.topic, 0, _waiting_too(place), "me")


@case("reschedule", "the most", ttl="11d13h46m40s")
def _reschedule(place: Place) -> Call[Any]:
    return steering.reschedule(place.topic, 0, _waiting_too(place), ("priority", FAR), "me")


@case("promote", "the most", ttl="11d13h46m40s")
def _promote(place: Place) -> Call[Any]:
    return steering.promote(place.topic, 0, _waiting_too(place), "me")


@case("redrive", "the most", ttl="11d13h46m40s")
def _redrive(place: Place) -> Call[Any]:
    names = place.dead(NACK_BATCH)
    return dead_.redrive(place.topic, 0, ("priority", FAR), overwrite=True, contents=names, actor="me")


@case("purge_dead", "named ones", most=1_000)
def _purge_dead(place: Place) -> Call[Any]:
    return dead_.purge_dead(place.topic, 0, place.dead(NACK_BATCH), actor="me")


@case("purge_backlog", "1,000", most=1_000, ttl="11d13h46m40s")
def _purge(place: Place) -> Call[Any]:
    names = place.store(MAX_BATCH)
    place.failures(names)
    return steering.purge_backlog(place.topic, 0, "store", MAX_BATCH)


case("pause", "one slot", sizes=False)(lambda place: steering.pause(place.topic, 0, True, "me"))
case("audit", "a line", sizes=False)(lambda place: steering.audit(place.topic, 0, "me", "purge", "all", "begun"))
case("confirm", "one slot", sizes=False)(lambda place: steering.confirm(place.topic, 0))
case("adopt", "one slot", sizes=False)(lambda place: steering.adopt(place.topic, 0, "zk", "other"))


# --- looking


@case("peek", "a page")
def _peek(place: Place) -> Call[Any]:
    place.store(MAX_BATCH)
    return viewing.peek(place.topic, 0, "store", 0, MAX_BATCH)


@case("list_dead", "a page")
def _list_dead(place: Place) -> Call[Any]:
    place.dead(MAX_BATCH)
    return dead_.list_dead(place.topic, 0, 0, NACK_BATCH)


@case("untold_dead", "a page")
def _untold_dead(place: Place) -> Call[Any]:
    place.dead(MAX_BATCH)
    place.client.hset(place.keys.meta, mapping=TOLD_BEFORE)
    return dead_.untold(place.topic, 0, TURN, AT_ONCE)


@case("dead_reasons", "the largest sample")
def _dead_reasons(place: Place) -> Call[Any]:
    place.dead(MAX_BATCH)
    return dead_.dead_reasons(place.topic, 0, viewing.MOST_REASONS)


@case("find", "one in all places")
def _find(place: Place) -> Call[Any]:
    name = place.store(1, prefix="x")[0]
    for fill in (place.held, place.dead):
        fill(1, prefix="x")
    return viewing.find(place.topic, 0, name)


@case("search", "a step")
def _search(place: Place) -> Call[Any]:
    place.store(2_000)
    place.held(2_000)
    place.waiting(2_000)
    place.dead(2_000)
    return viewing.search(place.topic, 0, b"*", search.MOST, ("0", "0", "0", "0"))


@case("look", "256 slots", sizes=False, slots=256)
def _look(place: Place) -> Call[Any]:
    for slot in range(256):
        place.__dict__["keys"] = slot_keys(place.topic.name, slot)
        place.held(1)
        place.waiting(1)
    return claiming.look(place.topic, range(256))


@case("stats", "a slot", F, sizes=False)
def _stats(place: Place) -> Call[Any]:
    place.store(MAX_BATCH)
    return viewing.stats(place.topic, 0)


# --- of the whole Redis


def _workers(place: Place) -> list[bytes]:
    names = [b"w%d" % index for index in range(2_000)]
    place.zset(WORKERS_KEY, names, place.now_ms - 10**9)
    place.client.hset(WORKER_INFOS_KEY, mapping=dict.fromkeys(names, b"x" * 1_000))
    return names


@case("worker_beat", "with others to forget", sizes=False)
def _worker_beat(place: Place) -> Call[Any]:
    _workers(place)
    return workers.worker_beat("w", "{}", 60_000)


@case("workers", "1,000", sizes=False)
def _all_workers(place: Place) -> Call[Any]:
    _workers(place)
    return workers.workers()._replace(parse=len)


case("take_tokens", "1,000", sizes=False, max_rate=1_000)(lambda place: limits.take_tokens(place.topic, MAX_BATCH))
case("take_lock", "a minute", sizes=False)(
    lambda _: limits.take_lock(HISTORY_LOCK_KEY, "minute", "me", 60_000, "period")
)


@case("history_write", "a full ring from a clock that was ahead", sizes=False)
def _history(place: Place) -> Call[Any]:
    minute = place.now_ms // 60_000
    key = history_key("t")
    place.client.rpush(key, *(f"{minute + 10 + index} {'1 ' * 100}" for index in range(MINUTES)))
    return _plain("history_write", key, minute, f"{minute} {'1 ' * 100}", MINUTES, KEEP_S)


@case("registry_read", "the most names, the longest definitions", sizes=False)
def _registry_read(place: Place) -> Call[Any]:
    names = [f"t{index}" for index in range(READ_AT_ONCE)]
    place.client.hset(TOPICS_KEY, mapping=dict.fromkeys(names, b"x" * MAX_DEFINITION_BYTES))
    return _plain("registry_read", TOPICS_KEY, MAX_DEFINITION_BYTES, *names)


@case("registry_define", "the longest definition", sizes=False)
def _registry_define(place: Place) -> Call[Any]:
    text = b"x" * MAX_DEFINITION_BYTES
    place.client.hset(TOPICS_KEY, "t", text)
    return _plain("registry_define", TOPICS_KEY, "t", text, text)


def _plain(script: str, key: str, *args: Any) -> Call[Any]:
    return Call(script, (key,), args, lambda reply: reply, True, "t", 0)


# --- streaming queries


def _read(place: Place, driver: Driver = DRIVER, max_replays: int = 10) -> Call[Any]:
    reading = Reading(driver, 1, spark_calls.CHUNK, max_replays, True)
    return spark_calls.read(place.topic, reading, 0, 0, spark_calls.CHUNK)


@case("spark_enter", "a driver", sizes=False)
def _spark_enter(place: Place) -> Call[Any]:
    return spark_calls.enter(place.topic, "q")


@case("spark_read", "a chunk")
def _spark_read(place: Place) -> Call[Any]:
    place.store(MAX_BATCH)
    return _read(place)


@case("spark_read", "a replay")
def _spark_replay(place: Place) -> Call[Any]:
    run(place.client, _spark_read(place))
    return _read(place, Driver("q", 2))


@case("spark_read", "a replay of what a sweep has put back")
def _spark_replay_back(place: Place) -> Call[Any]:
    names = run(place.client, _spark_read(place)).contents
    place.client.delete(place.keys.prepare)
    place.zset(place.keys.store, names, 5, 0)
    return _read(place, Driver("q", 2))


@case("spark_read", "a replay that buries all", max_retries=1)
def _spark_replay_buries(place: Place) -> Call[Any]:
    names = place.store(MAX_BATCH)
    place.zset(place.keys.store, names, 1, 0)
    for number, name in enumerate(names):  # each has failed before, at a time of its own
        place.client.hset(place.keys.error, name, FAILURE.replace('"1"', f'"{number}"'))
    run(place.client, _read(place))
    return _read(place, Driver("q", 2))


@case("spark_read", "a replay that puts half back")
def _spark_replay_halved(place: Place) -> Call[Any]:
    run(place.client, _spark_read(place))
    return _read(place, Driver("q", 2), 0)


@case("spark_settle", "an ack")
def _spark_ack(place: Place) -> Call[Any]:
    run(place.client, _spark_read(place))
    return spark_calls.settle(place.topic, 0, DRIVER, 1, 0, "ack")


@case("spark_settle", "an ack of what sweeps have put back")
def _spark_ack_back(place: Place) -> Call[Any]:
    names = run(place.client, _spark_read(place)).contents
    score = int(place.client.zscore(place.keys.prepare, names[0]) or 0)
    place.client.delete(place.keys.prepare)
    place.zset(place.keys.store, names, score % 1000, 0)
    failure = f'{{"claim":"{score}","merged":"0","type":"LeaseExpired"}}'
    place.client.hset(place.keys.error, mapping=dict.fromkeys(names, failure))
    return spark_calls.settle(place.topic, 0, DRIVER, 1, 0, "ack")


@case("spark_settle", "a renewal")
def _spark_renew(place: Place) -> Call[Any]:
    run(place.client, _spark_read(place))
    return spark_calls.settle(place.topic, 0, DRIVER, 1, 0, "renew")


@case("spark_forget", "a chunk")
def _spark_forget(place: Place) -> Call[Any]:
    run(place.client, _spark_read(place))
    return spark_calls.forget(place.topic, 0, DRIVER, 1, 0)


@case("spark_refuse", "a chunk")
def _spark_refuse(place: Place) -> Call[Any]:
    names = run(place.client, _spark_read(place)).contents
    return refuse_contents(place.topic, 0, spark_calls.Claim(DRIVER, 1, 0), How(None, "ValueError", "bad"), names)


@case("spark_scan", "a step")
def _spark_scan(place: Place) -> Call[Any]:
    place.dead(5_000)
    return spark_calls.read_place(place.topic, 0, "dead", "scan", "0", MAX_BATCH)


@case("spark_scan", "1,000 by name")
def _spark_named(place: Place) -> Call[Any]:
    return spark_calls.read_place(place.topic, 0, "dead", "named", contents=place.dead(MAX_BATCH))


# --- streams


case("stream_send", "1,000", S)(lambda place: streams.sends(place.topic)(
    0, place.messages(MAX_BATCH), True))  # fmt: skip


@case("stream_join", "among the most groups", S, sizes=False)
def _join(place: Place) -> Call[Any]:
    place.entries(10)
    for index in range(streams.MAX_GROUPS - 1):
        place.client.xgroup_create(place.keys.store, f"g{index}", "0")
    return streams.join(place.topic, 0, "h", "all")


def _claim_entries(place: Place, limit: int = MAX_BATCH, **settled: Any) -> Call[Any]:
    return claim_group(place.topic, 0, ME, limit, Outcomes(**settled))


@case("stream_claim", "1,000 new", S)
def _stream_claim(place: Place) -> Call[Any]:
    place.client.xgroup_create(place.keys.store, ME.group, "0", mkstream=True)
    place.entries(MAX_BATCH)
    return _claim_entries(place)


@case("stream_claim", "new ones, large behind small", S)
def _stream_claim_mixed(place: Place) -> Call[Any]:
    place.client.xgroup_create(place.keys.store, ME.group, "0", mkstream=True)
    place.client.eval(_FILL_STREAM, 1, place.keys.store, 0, 200)
    place.entries(64)
    return _claim_entries(place)


@case("stream_claim", "expired ones", S)
def _stream_expired(place: Place) -> Call[Any]:
    place.pending(MAX_BATCH, idle_ms=10**8, holder="other")
    return _claim_entries(place)


@case("stream_claim", "expired ones that die", S)
def _stream_dying(place: Place) -> Call[Any]:
    place.pending(MAX_BATCH, times=99, idle_ms=10**8, holder="other")
    return _claim_entries(place)


@case("stream_claim", "retries that are due", S)
def _stream_retries(place: Place) -> Call[Any]:
    ids = place.pending(MAX_BATCH, holder="(waiting)")
    names = [f"{ms}-{int(sequence):020}".encode() for ms, _, sequence in (each.partition("-") for each in ids)]
    place.zset(place.own.retry, names, 1, 0)
    return _claim_entries(place)


def _stream_nacks(ids: Sequence[str], verb: str) -> list[Nack]:
    return [Nack(each.encode(), 1, verb, 1_000, "ValueError", "no" * 200) for each in ids[:NACK_BATCH]]


@case("stream_settle", "nacks", S)
def _stream_nack(place: Place) -> Call[Any]:
    nacks = _stream_nacks(place.pending(NACK_BATCH), "retry")
    return settle_group(place.topic, 0, ME, Outcomes(nacks=nacks))


@case("stream_settle", "nacks that bury", S, most=PORTION)
def _stream_bury(place: Place) -> Call[Any]:
    nacks = _stream_nacks(place.pending(NACK_BATCH), "bury")
    return settle_group(place.topic, 0, ME, Outcomes(nacks=nacks))


@case("stream_settle", "acks out of order", S)
def _stream_acks(place: Place) -> Call[Any]:
    ids = place.pending(2 * MAX_BATCH)[::2]
    return settle_group(place.topic, 0, ME, Outcomes([(each.encode(), 1) for each in ids]))


@case("stream_claim", "everything at once", S, sizes=False, max_dead=1)
def _stream_everything(place: Place) -> Call[Any]:
    ids = place.pending(3 * MAX_BATCH + PIGGYBACKED_NACKS)
    dying, nacked, others = ids[:MAX_BATCH], ids[MAX_BATCH:][:PIGGYBACKED_NACKS], ids[MAX_BATCH:][PIGGYBACKED_NACKS:]
    waiting, acked = others[1::2], others[::2]
    gone = {"min_idle_time": 0, "idle": 10**8, "retrycount": 99, "justid": True}
    place.client.xclaim(place.keys.store, ME.group, "other", message_ids=dying, **gone)
    place.client.xclaim(place.keys.store, ME.group, "(waiting)", 0, waiting, retrycount=1, justid=True)
    names = [f"{ms}-{int(sequence):020}".encode() for ms, _, sequence in (each.partition("-") for each in waiting)]
    place.zset(place.own.retry, names, 1, 0)
    place.zset(place.own.dead, place.names(2_000), 1)
    place.client.hset(place.own.reason, mapping=dict.fromkeys(place.names(2_000), FAILURE))
    place.entries(MAX_BATCH)
    acks = [(each.encode(), 1) for each in acked]
    return _claim_entries(place, acks=acks, nacks=_stream_nacks(nacked, "bury"))


@case("stream_claim", "as many slots as a call has", S, most=24, slots=1_024)
def _stream_claim_slots(place: Place) -> Call[Any]:
    slots = MOST_WEIGHT // (CLAIM_WEIGHT + 10)
    for slot in range(slots):
        place.__dict__["keys"] = slot_keys(place.topic.name, slot)
        place.__dict__["own"] = group_keys(place.topic.name, slot, ME.group)
        ids = place.pending(40, idle_ms=10**8, holder="other")
        gone = {"min_idle_time": 0, "idle": 10**8, "retrycount": 99, "justid": True}
        place.client.xclaim(place.keys.store, ME.group, "other", message_ids=ids[::2], **gone)
        place.entries(10)
    return streams.stream_claims(place.topic, ME)([ClaimPart(slot, 10) for slot in range(slots)])


@case("stream_settle", "the most whole claims", S)
def _stream_settle_whole(place: Place) -> Call[Any]:
    place.client.xgroup_create(place.keys.store, ME.group, "0", mkstream=True)
    place.entries(MAX_BATCH)
    share = MAX_BATCH // WHOLE_BATCH
    claims = [claim_group(place.topic, 0, ME, share, own=True) for _ in range(WHOLE_BATCH)]
    return settle_group(place.topic, 0, ME, Outcomes(whole=[run(place.client, each).own for each in claims]))


@case("stream_extend", "the most, out of order", S)
def _stream_extend(place: Place) -> Call[Any]:
    ids = place.pending(2 * claiming.STREAM_RENEWALS)[::2]
    return streams.extend(place.topic, 0, ME, [(each.encode(), 1) for each in ids])


@case("stream_look", "64 slots", S, sizes=False, slots=64)
def _stream_look(place: Place) -> Call[Any]:
    return streams.look(place.topic, range(64), ME.group)


@case("stream_trim", "all", S, most=1_000)
def _stream_trim(place: Place) -> Call[Any]:
    place.entries(5_000)
    return streams.trim(place.topic, 0, Retention(max_length=0, approximate=False), now=True)


@case("stream_delete", "the most", S)
def _stream_delete(place: Place) -> Call[Any]:
    return streams.delete(place.topic, 0, place.entries(claiming.CONTROL_BATCH))


@case("stream_range", "a page", S)
def _stream_range(place: Place) -> Call[Any]:
    place.entries(MAX_BATCH)
    return streams.read_range(place.topic, 0, "-", "+", MAX_BATCH, down=False)


@case("stream_range", "a page, large behind small", S)
def _stream_range_mixed(place: Place) -> Call[Any]:
    place.client.eval(_FILL_STREAM, 1, place.keys.store, 0, 200)
    place.entries(64)
    return streams.read_range(place.topic, 0, "-", "+", MAX_BATCH, down=False)


@case("stream_stats", "a slot", S, sizes=False)
def _stream_stats(place: Place) -> Call[Any]:
    place.pending(100)
    return streams.stats(place.topic, 0)


@case("spark_walk", "the most", S)
def _spark_walk(place: Place) -> Call[Any]:
    place.client.xgroup_create(place.keys.store, ME.group, "0", mkstream=True)
    place.entries(MAX_BATCH)
    return log_calls.walk(place.topic, 0, ME.group, log_calls.Reach("0-0", "+", MAX_BATCH, 1 << 40, True))


@case("spark_position", "a slot", S, sizes=False)
def _spark_position(place: Place) -> Call[Any]:
    place.client.xgroup_create(place.keys.store, ME.group, "0", mkstream=True)
    place.entries(MAX_BATCH)
    return log_calls.position(place.topic, 0, ME.group, "driver")


@case("spark_advance", "a slot", S, sizes=False)
def _spark_advance(place: Place) -> Call[Any]:
    place.client.xgroup_create(place.keys.store, ME.group, "0", mkstream=True)
    last = place.entries(MAX_BATCH)[-1]
    return log_calls.advance(place.topic, 0, ME.group, "driver", last, MAX_BATCH, 0)


@case("spark_trim", "a slot", S, most=1_000)
def _spark_trim(place: Place) -> Call[Any]:
    place.client.xgroup_create(place.keys.store, ME.group, "0", mkstream=True)
    last = place.entries(MAX_BATCH)[-1]
    place.client.xgroup_setid(place.keys.store, ME.group, last)
    return log_calls.trim(place.topic, 0, ME.group, "driver", last)


@case("take_lock", "a run", S, sizes=False)
def _lock_run(place: Place) -> Call[Any]:
    return log_calls.lock_run(place.topic, ME.group, "run", 1_000, keep=False)


@case("stream_group", "a slot", S, sizes=False)
def _stream_group(place: Place) -> Call[Any]:
    place.pending(100)
    return streams.group_stats(place.topic, 0, ME.group)


@case("stream_consumers", "a slot", S, sizes=False)
def _stream_consumers(place: Place) -> Call[Any]:
    place.pending(100)
    return streams.consumers(place.topic, 0, ME.group)


@case("stream_pending", "a page", S, sizes=False)
def _stream_pending(place: Place) -> Call[Any]:
    place.pending(MAX_BATCH)
    return streams.pending(place.topic, 0, ME.group, "-", MAX_BATCH, "")


@case("stream_forget", "a consumer that holds much", S, sizes=False)
def _stream_forget(place: Place) -> Call[Any]:
    place.pending(MAX_BATCH)
    return streams.forget(place.topic, 0, ME.group, ME.consumer, 0, NACK_BATCH)


@case("stream_resume", "what is given back", S, sizes=False)
def _stream_resume(place: Place) -> Call[Any]:
    place.pending(MAX_BATCH)
    return streams.resume(place.topic, 0, ME, RESUME_BATCH)


@case("stream_resume", "what dies", S)
def _stream_resume_dying(place: Place) -> Call[Any]:
    place.pending(MAX_BATCH, times=99)
    return streams.resume(place.topic, 0, ME, RESUME_BATCH)


@case("stream_move_group", "behind the first entry", S)
def _stream_move_group(place: Place) -> Call[Any]:
    ids = place.pending(MAX_BATCH)
    return streams.move_group(place.topic, 0, ME.group, ids[0], through=True)


@case("stream_drop_group", "with 1,000 pending", S, sizes=False)
def _stream_drop(place: Place) -> Call[Any]:
    place.pending(MAX_BATCH)
    return streams.drop_group(place.topic, 0, ME.group)


@case("stream_list_dead", "a page", S)
def _stream_list_dead(place: Place) -> Call[Any]:
    place.dead_entries(MAX_BATCH)
    return dead_.list_dead(place.topic, 0, 0, NACK_BATCH, ME.group)


@case("stream_untold_dead", "a page", S)
def _stream_untold_dead(place: Place) -> Call[Any]:
    place.dead_entries(MAX_BATCH)
    place.zset(place.own.dead, place.client.zrange(place.own.dead, 0, -1), place.now_ms - 1_000_000)
    place.client.hset(place.own.group, mapping=TOLD_BEFORE)
    return dead_.untold(place.topic, 0, TURN, AT_ONCE, ME.group)


@case("stream_redrive", "what is in the stream", S)
def _stream_redrive(place: Place) -> Call[Any]:
    return dead_.redrive_entries(place.topic, 0, ME.group, place.dead_entries(NACK_BATCH))


@case("stream_redrive", "copies of what was trimmed", S)
def _stream_resend(place: Place) -> Call[Any]:
    return dead_.redrive_entries(place.topic, 0, ME.group, place.dead_entries(NACK_BATCH, trimmed=True))
