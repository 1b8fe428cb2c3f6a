"""Calls of every durable script, found by `Call.durable`, on an empty slot and on one with something in every key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rmq import Retention, StreamMessage, TopicType
from rmq.spark.marks import Mark, send_once
from tests.lua.cases import Example, of_queue, script_of
from tests.lua.every_case import EXAMPLES, QUEUES, STREAMS
from tests.lua.stream_cases import of_stream
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
P = TopicType.PRIORITY


def _define(text: bytes) -> Example:
    def seed(slot: SlotUnderTest) -> None:
        slot.client.hset(TOPICS_KEY, "t", "there")

    return Example(P, lambda topic, _: registry.define("t", b"there", text, durable=True), seed)


def _of_stream(call: Any) -> Example:
    return of_stream("", lambda topic, _: call(topic))


DURABLE = {bound.name for module in MODULES for bound in bound_in(module).values() if bound.durable}
"""The scripts whose calls are durable."""
CASES: dict[str, Example] = {
    **{name: example for name, example in (QUEUES | STREAMS).items() if script_of(name) in DURABLE},
    "adopt of one that has moved": replace(
        EXAMPLES["adopt"], make=lambda topic, _: EXAMPLES["adopt"].make(topic, _)._replace(args=("old", "zk"))
    ),
    "keeper": of_queue(P, lambda topic: shared.keep_nodes(0, 10_000, ["create", "/a", "x", 1], 0, 0, changes=True)),
    "registry_define": _define(b"new"),
    "registry_define of the same": _define(b"there"),
    "delete_topic": of_queue(P, lambda topic: deletion.delete_slot(topic, 0, "d", (), force=False)),
    "delete_topic: all": of_queue(P, lambda topic: deletion.delete_slot(topic, 0, "d", (), force=True)),
    "delete_topic: clear": of_queue(P, lambda topic: deletion.clear_slot(topic, 0, "d")),
    "stream_send with ids": _of_stream(
        lambda topic: streams.sends(topic)(0, [encode(topic, StreamMessage("a", id="99999999999999-1"))], True)
    ),
    "stream_send with open ids": _of_stream(
        lambda topic: streams.sends(topic)(0, [encode(topic, StreamMessage("a", id="99999999999999-*"))], True)
    ),
    "stream_send of a chunk": _of_stream(lambda topic: send_once(topic, 0, ENTRIES, Mark("q1", 1, 0, 60, 0, "d"))),
    "stream_trim of nothing": _of_stream(
        lambda topic: streams.trim(topic, 0, Retention(max_length=10**6, shrink=False), now=True)
    ),
}
"""Name of a script, with what is done where it has several -> its call in an empty or a full slot."""


def made(slot: SlotUnderTest, case: str, full: bool) -> Call[Any]:
    """Return a durable call of nobody, whose line in the audit would be a write, on a full slot or on an empty one."""
    example = CASES[case]
    call = example.make(slot.topic, example.seed(slot) if full else example.unseeded)
    assert call.durable
    names = default_scripts()[call.script].args.required
    args = ["" if name == "actor" else arg for name, arg in zip(names, call.args, strict=False)]
    return call._replace(args=[*args, *call.args[len(names) :]])
