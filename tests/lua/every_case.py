"""Every script that works on a slot: a slot with something in every key, and the call; also where it merges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq import Collect, Leading, Merge, TopicType, WhenFull
from rmq._ownership.redis_keeper import keeper_call
from rmq._ownership.requests import Children, Create, Get, Look, Put, Release, Sync
from rmq.spark.marks import Mark, send_once
from tests.conftest import MakeSlot
from tests.lua import cases, stream_cases, test_merging_steps, test_spark_log, test_spark_scripts
from tests.lua.cases import FULL, OWNER, apart
from tests.lua.test_claim_slots import slots_of
from tests.lua.test_refused_hints import CASES as HINTING
from tests.support.core import Call, ClaimPart, EncodedMessage, claims, sends
from tests.support.slots import SlotUnderTest, with_hints

MakeCall = Callable[[], Call[Any]]


@dataclass(frozen=True)
class EveryCase:
    """A script on a slot.

    Attributes:
        kind: Type of the topic.
        prepare: Fills the slot, and returns what makes the call.
        settings: What the topic is besides; `checked` goes to `make_slot`.
        writes: Whether the script changes something.
        unread: Keys that the script is given, and that may be of any type when it begins to write.
    """

    kind: TopicType
    prepare: Callable[[SlotUnderTest], MakeCall]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    writes: bool = True
    unread: Callable[[SlotUnderTest, Call[Any]], set[str]] = lambda slot, call: {slot.keys.wake}

    def made(self, make_slot: MakeSlot, **settings: Any) -> tuple[SlotUnderTest, MakeCall]:
        """Return a slot that is filled, and what makes the call."""
        slot = make_slot(self.kind, **self.settings, **settings)
        return slot, self.prepare(slot)


def _of_queue(name: str, case: cases.Case, *, writes: bool) -> EveryCase:
    def prepare(slot: SlotUnderTest) -> MakeCall:
        slot.seed(FULL if slot.topic.merge is None else apart(FULL))
        return lambda: case(slot.topic)

    return EveryCase((HINTING | cases.READERS)[name][0], prepare, cases.LIMITS.get(name, {}), writes)


def _of_merging_queue(name: str) -> EveryCase:
    kind, case = cases.WRITERS[name]

    def prepare(slot: SlotUnderTest) -> MakeCall:
        slot.seed(test_merging_steps.MERGED)
        return lambda: case(slot.topic)

    def unread(slot: SlotUnderTest, call: Call[Any]) -> set[str]:
        del call  # to redrive `held` only says that the topic merges
        return {slot.keys.wake, *([slot.keys.held] if name == "redrive" else [])}

    return EveryCase(kind, prepare, {"merge": Merge(Collect())}, unread=unread)


def _of_merging_send(kind: TopicType, *, once: bool, **settings: Any) -> EveryCase:
    messages = [
        EncodedMessage(0, name, 500, value)
        for name, value in test_merging_steps.values([b"due", b"new"], b" sent").items()
    ]

    def prepare(slot: SlotUnderTest) -> MakeCall:
        slot.seed(test_merging_steps.MERGED)
        if once:
            return lambda: send_once(slot.topic, 0, messages, Mark("q1", 1, 0, 60).of(0, messages))
        return lambda: with_hints(sends.send_calls(slot.topic)(0, messages))

    def unread(slot: SlotUnderTest, call: Call[Any]) -> set[str]:
        del call
        return {slot.keys.wake, slot.keys.born if kind.timed else slot.keys.cool}

    return EveryCase(kind, prepare, {"max_backlog": 9, "when_full": WhenFull.DROP, **settings}, unread=unread)


def _of_stream(name: str, case: stream_cases.Case, *, writes: bool) -> EveryCase:
    def prepare(slot: SlotUnderTest) -> MakeCall:
        names = stream_cases.seed(slot.client, slot.topic)
        return lambda: case(slot.topic, names)

    def unread(slot: SlotUnderTest, call: Call[Any]) -> set[str]:
        own = set(stream_cases.all_keys(slot.topic))
        return {key for key in call.keys if key not in own or (name == "stream_drop_group" and key != slot.keys.store)}

    return EveryCase(TopicType.STREAM, prepare, {"checked": False, "max_retries": 16}, writes, unread)


def _of_query(script: str) -> EveryCase:
    def prepare(slot: SlotUnderTest) -> MakeCall:
        test_spark_scripts.opened(slot)
        return lambda: test_spark_scripts.SCRIPTS[script](slot.topic)

    return EveryCase(TopicType.FIXED_TIME, prepare, writes=script != "spark_scan")


def _of_query_on_a_stream(script: str) -> EveryCase:
    def prepare(slot: SlotUnderTest) -> MakeCall:
        test_spark_log.filled(slot.connections, slot.topic)
        return lambda: test_spark_log.EACH[script](slot.topic)

    def unread(slot: SlotUnderTest, call: Call[Any]) -> set[str]:
        passed_over = {"take_lock": set[str](), "spark_position": {slot.keys.store}}
        return passed_over.get(script, {slot.keys.store})

    return EveryCase(TopicType.STREAM, prepare, {"checked": False}, script != "spark_walk", unread)


def _claim_from_two(slot: SlotUnderTest) -> MakeCall:
    for each in slots_of(slot, 2):
        each.seed(FULL)
    return lambda: claims.queue_claims(slot.topic)([ClaimPart(number, 10, owner=OWNER) for number in range(2)])


def _keep(slot: SlotUnderTest) -> MakeCall:
    changes = Create("/a", b"", False), Create("/a/b", b"", True), Put("/a", b"x", 0), Release("/a/b", "/a")
    requests = [Sync(), *changes, Look("/a"), Get("/a"), Children("/a", own=True)]
    return lambda: with_hints(keeper_call(0, 6_000, requests))


EVERY: dict[str, EveryCase] = {
    **{name: _of_queue(name, case, writes=True) for name, (_, case) in (HINTING | cases.WRITERS).items()},
    **{name: _of_queue(name, case, writes=False) for name, (_, case) in cases.READERS.items()},
    **{f"{name} (merging)": _of_merging_queue(name) for name in test_merging_steps.STEPS},
    "send_merged (windows)": _of_merging_send(
        TopicType.RANGE_MERGE, once=False, merge=Merge(Collect(), Leading("500ms"))
    ),
    "send_merged (ages)": _of_merging_send(TopicType.PRIORITY, once=False, merge=Merge(Collect()), ttl="500ms"),
    "send_merged (chunk, ages)": _of_merging_send(TopicType.PRIORITY, once=True, merge=Merge(Collect()), ttl="1h"),
    **{name: _of_stream(name, case, writes=True) for name, case in stream_cases.WRITERS.items()},
    **{name: _of_stream(name, case, writes=False) for name, case in stream_cases.READERS.items()},
    **{script: _of_query(script) for script in test_spark_scripts.SCRIPTS},
    **{script: _of_query_on_a_stream(script) for script in test_spark_log.EACH},
    "claim: two slots": EveryCase(TopicType.FIXED_TIME, _claim_from_two, {"slots": 2, "checked": False}),
    "keeper": EveryCase(TopicType.FIXED_TIME, _keep),
}
WRITERS = [name for name, case in EVERY.items() if case.writes]
READERS = [name for name, case in EVERY.items() if not case.writes]
