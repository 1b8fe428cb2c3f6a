"""Calls of every durable script, found by `Call.durable`, on an empty slot and on one with something in every key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rmq import Retention, StreamMessage, Topic, TopicType
from rmq.spark.marks import Mark, send_once
from tests.lua import cases, stream_cases
from tests.lua.cases import script_of
from tests.lua.test_refused_hints import CASES as SPARK
from tests.support.bindings import MODULES, bound_in
from tests.support.core import (
    TOPICS_KEY,
    Call,
    EncodedMessage,
    default_scripts,
    deletion,
    encode,
    registry,
    shared,
    streams,
)
from tests.support.slots import SlotUnderTest

ENTRIES = [EncodedMessage(0, b"a", 0, b"A")]
NAMES = stream_cases.Seeded(*(f"{number}-1" for number in range(1, 10)))

Make = Callable[[SlotUnderTest, bool], Call[Any]]


def _of_slot(script: str) -> Make:
    return lambda slot, full: (SPARK | cases.WRITERS)[script][1](slot.topic)


def _of_stream(case: stream_cases.Case) -> Make:
    return lambda slot, full: case(slot.topic, stream_cases.seed(slot.client, slot.topic) if full else NAMES)


def _define(expected: bytes, text: bytes) -> Make:
    def make(slot: SlotUnderTest, full: bool) -> Call[Any]:
        if full:
            slot.client.hset(TOPICS_KEY, "t", "there")
        return registry.define("t", expected, text, durable=True)

    return make


DURABLE = {bound.name for module in MODULES for bound in bound_in(module).values() if bound.durable}
"""The scripts whose calls are durable."""


CASES: dict[str, Make] = {
    **{name: _of_slot(name) for name in sorted(SPARK | cases.WRITERS) if script_of(name) in DURABLE},
    **{name: _of_stream(case) for name, case in stream_cases.WRITERS.items() if name in DURABLE},
    "adopt of one that has moved": lambda slot, full: SPARK["adopt"][1](slot.topic)._replace(args=("old", "zk")),
    "pause: resume": lambda slot, full: SPARK["pause"][1](slot.topic),
    "pause: pause": lambda slot, full: cases.WRITERS["pause"][1](slot.topic),
    "keeper": lambda slot, full: shared.keep_nodes(0, 10_000, ["create", "/a", "x", 1], 0, 0, changes=True),
    "registry_define": _define(b"there", b"new"),
    "delete_topic": lambda slot, full: deletion.delete_slot(slot.topic, 0, "d", (), force=False),
    "delete_topic: all": lambda slot, full: deletion.delete_slot(slot.topic, 0, "d", (), force=True),
    "delete_topic: clear": lambda slot, full: deletion.clear_slot(slot.topic, 0, "d"),
    "registry_define of the same": _define(b"there", b"there"),
    "stream_send with ids": _of_stream(
        lambda topic, names: streams.sends(topic)(0, [encode(topic, StreamMessage("a", id="99999999999999-1"))], True)
    ),
    "stream_send with open ids": _of_stream(
        lambda topic, names: streams.sends(topic)(0, [encode(topic, StreamMessage("a", id="99999999999999-*"))], True)
    ),
    "stream_send of a chunk": _of_stream(
        lambda topic, names: send_once(topic, 0, ENTRIES, Mark("q1", 1, 0, 60, 0, "d"))
    ),
    "stream_trim of nothing": _of_stream(
        lambda topic, names: streams.trim(topic, 0, Retention(max_length=10**6, shrink=False), now=True)
    ),
}
"""Name of a script, with what is done where it has several -> its call in an empty or a full slot."""


def topic_of(case: str, name: str) -> Topic:
    """Return a topic that a case fits, with a name."""
    script = script_of(case)
    kind = TopicType.STREAM if script.startswith("stream_") else TopicType.PRIORITY
    kind = (SPARK | cases.WRITERS)[case][0] if case in SPARK | cases.WRITERS else kind
    return Topic(name, kind, **cases.LIMITS.get(case, {}))


def made(slot: SlotUnderTest, case: str, full: bool) -> Call[Any]:
    """Return a durable call of nobody, whose line in the audit would be a write, on a full slot or on an empty one."""
    if full and slot.topic.type is not TopicType.STREAM:
        slot.seed(cases.apart(cases.FULL) if slot.topic.merge else cases.FULL)
    call = CASES[case](slot, full)
    assert call.durable
    names = default_scripts()[call.script].args.required
    args = ["" if name == "actor" else arg for name, arg in zip(names, call.args, strict=False)]
    return call._replace(args=[*args, *call.args[len(names) :]])
