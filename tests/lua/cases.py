"""A slot with something in every key, and an example call of each script on it: what every script is tested with.

A script has its example in `EXAMPLES` of one file of this folder: its own `test_<script>.py`, or this one.
`every_case` collects them all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rmq import Fixed, Merge, Owner, RangeMergeMessage, Sum, Topic, TopicType, WhenFull
from rmq.spark.marks import Mark, send_once
from tests.conftest import MakeSlot
from tests.support.core import (
    Batch,
    Call,
    EncodedMessage,
    Nack,
    Outcomes,
    QueueSends,
    Turn,
    claims,
    control,
    dead,
    encode,
    named_rpc_id,
    sends,
    shared,
    viewing,
)
from tests.support.one_slot import claim_slot, settle_slot
from tests.support.slots import T0, SlotState, SlotUnderTest, scripts_under_test

SECOND = T0 // 1000
LIVE, EXPIRED, USED_UP = T0 * 1000 + 5, (T0 - 100_000) * 1000 + 5, (T0 - 99_000) * 1000
FAILURE = {"first_ms": "1", "last_ms": "2", "type": "ValueError", "message": "no"}

FULL = SlotState(
    store={b"due": T0 - 5, b"resent": T0 - 4, b"later": T0 + 10**6},
    prepare={b"held": LIVE, b"resent": LIVE, b"expired": EXPIRED, b"used up": USED_UP},
    retry={b"waiting": (SECOND - 1) * 1000 + 3, b"patient": (SECOND + 100) * 1000 + 3},
    dead={b"dead": T0 - 1_000, b"long dead": T0 - 2_000},
    body={name: b"body of " + name for name in (b"due", b"resent", b"held", b"expired", b"used up", b"waiting")},
    error={name: FAILURE for name in (b"held", b"expired", b"used up", b"waiting")},
    reason={name: {**FAILURE, "attempts": 17} for name in (b"dead", b"long dead")},
    dead_body={b"dead": b"body of dead"},
    owner={"epoch": "5", "ensemble": "zk"},
)


def apart(state: SlotState) -> SlotState:
    """Return a state as a topic that merges has it: what is in flight, or waits, has its value in `held`."""
    held = {name: body for name, body in state.body.items() if name in state.prepare or name in state.retry}
    body = {name: body for name, body in state.body.items() if name in state.store}
    return replace(state, body=body, held=held, merges=True)


OWNER = Owner(6, "zk")
"""A newer owner than the last one: its epoch is written down."""

MakeCall = Callable[[], Call[Any]]


@dataclass(frozen=True)
class Example:
    """A call of a script on a slot.

    Attributes:
        kind: Type of the topic.
        make: Makes the call, of the topic and what `seed` returned.
        seed: Fills the slot.
        settings: What the topic is besides.
        unread: Keys that the script is given, and that may be of any type when it begins to write.
        unseeded: Stands for what `seed` returns where the slot stays empty.
    """

    kind: TopicType
    make: Callable[[Topic, Any], Call[Any]]
    seed: Callable[[SlotUnderTest], Any]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unread: Callable[[SlotUnderTest, Call[Any]], set[str]] = lambda slot, call: {slot.keys.wake}
    unseeded: Any = None

    @property
    def checked(self) -> bool:
        """Whether the accounts of slot 0 show that nothing is lost."""
        return self.kind is not TopicType.STREAM and "slots" not in self.settings

    def topic(self, name: str = "t") -> Topic:
        """Return a topic that it fits."""
        return Topic(name, self.kind, **self.settings)

    def prepare(self, slot: SlotUnderTest) -> MakeCall:
        """Fill a slot, and return what makes the call."""
        seeded = self.seed(slot)
        return lambda: self.make(slot.topic, seeded)

    def made(self, make_slot: MakeSlot, *, checked: bool = True) -> tuple[SlotUnderTest, MakeCall]:
        """Return a slot that is filled, and what makes the call."""
        slot = make_slot(self.kind, checked=checked and self.checked, **self.settings)
        return slot, self.prepare(slot)


def seed_full(slot: SlotUnderTest) -> None:
    """Put something into every key."""
    slot.seed(FULL if slot.topic.merge is None else apart(FULL))


def of_queue(kind: TopicType, call: Callable[[Topic], Call[Any]], **settings: Any) -> Example:
    """Return an example on slot 0 of a topic, with something in every key."""
    return Example(kind, lambda topic, _: call(topic), seed_full, settings)


def writes(case: str) -> bool:
    """Return whether the script of a case changes something, by its header."""
    return "reads only" not in scripts_under_test().text(script_of(case))


NACKS = (Nack(b"held", LIVE, "retry", 1_000, "E", "m"), Nack(b"resent", LIVE, "bury", 0, "E", "m"))


def script_of(case: str) -> str:
    """Return the script that a case calls."""
    return case.split()[0].rstrip(":")


WRITES = {"XADD", "ZADD", "ZREM", "ZREMRANGEBYRANK", "HSET", "HDEL", "HINCRBY"}


def commands_of(script: str) -> set[str]:
    """Return the commands that a script names."""
    text = scripts_under_test().text(script)
    return set(re.findall(r"redis\.p?call\('(\w+)'", text)) | set(re.findall(r"'(Z\w*RANGE)'", text))


def _send(topic: Topic) -> Call[Any]:
    value = 2**52 if topic.type.timed else min(2**52, topic.priorities[1])
    messages = [EncodedMessage(0, b"new", value, b"body"), EncodedMessage(0, b"due", value, None)]
    return sends.send_calls(topic)(0, messages)


def _send_many(topic: Topic) -> Call[Any]:
    messages = [EncodedMessage(0, b"new", 2**52, b"body"), EncodedMessage(0, b"due", 2**52, None)]
    return QueueSends(topic).joined([Batch.of(messages)])


def _send_merged(topic: Topic) -> Call[Any]:
    messages = [encode(topic, RangeMergeMessage(name, body=1)) for name in ("new", "due")]
    return sends.send_calls(topic)(0, messages, rpc_id=named_rpc_id("case", 1))


def _send_delayed(topic: Topic) -> Call[Any]:
    messages = [EncodedMessage(0, b"new", -5_000, b"body"), EncodedMessage(0, b"due", -5_000, None)]
    return sends.send_calls(topic)(0, messages)


def _send_once(topic: Topic) -> Call[Any]:
    messages = [EncodedMessage(0, b"new", 2**52, b"body")]
    if topic.merge is not None:
        messages = [encode(topic, RangeMergeMessage("new", body=1))]
    return send_once(topic, 0, messages, Mark("q1", 1, 0, 60).of(0, messages))


SUMS = {"merge": Merge(Sum(), window=Fixed("1m"))}
RELEASE = (Nack(b"held", LIVE, "release", 2**52),)


def _redrive(topic: Topic) -> Call[Any]:
    kind = "at" if topic.type.timed else "priority"
    return dead.redrive(topic, 0, (kind, 2**52), overwrite=False, contents=[b"dead"], actor="me")


EXAMPLES: dict[str, Example] = {
    "untold_dead": of_queue(
        TopicType.PRIORITY,
        lambda topic: dead.untold(topic, 0, Turn("ops", "me", 60_000, T0 - 5_000), 10),
    ),
    "send: after": of_queue(TopicType.RANGE_MERGE, _send),
    "send: priority": of_queue(TopicType.PRIORITY, _send),
    "send: ages": of_queue(TopicType.PRIORITY, _send, ties="oldest"),
    "send: several": of_queue(TopicType.FIXED_TIME, _send_many),
    "send: at": of_queue(TopicType.FIXED_TIME, _send),
    "send: limits": of_queue(TopicType.PRIORITY, _send, max_backlog=3, when_full=WhenFull.DROP, ttl="1m"),
    "send: delay": of_queue(TopicType.FIXED_TIME, _send_delayed),
    "send_merged": of_queue(TopicType.RANGE_MERGE, _send_merged, **SUMS),
    "send: chunk": of_queue(TopicType.PRIORITY, _send_once),
    "send_merged: chunk": of_queue(TopicType.RANGE_MERGE, _send_once, **SUMS),
    "claim: release": of_queue(
        TopicType.FIXED_TIME,
        lambda topic: claim_slot(topic, 0, 0, owner=OWNER, outcomes=Outcomes(nacks=RELEASE)),
    ),
    "claim": of_queue(
        TopicType.FIXED_TIME,
        lambda topic: claim_slot(topic, 0, 10, owner=OWNER, outcomes=Outcomes(acks=[(b"held", LIVE)], nacks=NACKS[1:])),
    ),
    "settle: acks": of_queue(
        TopicType.FIXED_TIME,
        lambda topic: settle_slot(topic, 0, Outcomes([(b"held", LIVE), (b"resent", LIVE)]), OWNER),
    ),
    "settle: nacks": of_queue(
        TopicType.FIXED_TIME,
        lambda topic: settle_slot(topic, 0, Outcomes(nacks=(*NACKS, Nack(b"expired", EXPIRED))), OWNER),
    ),
    "extend": of_queue(
        TopicType.FIXED_TIME,
        lambda topic: claims.extend(topic, 0, [(b"held", LIVE), (b"expired", EXPIRED)], OWNER),
    ),
    "cancel": of_queue(
        TopicType.FIXED_TIME, lambda topic: control.cancel(topic, 0, [b"due", b"patient", b"resent"], "me")
    ),
    "reschedule": of_queue(
        TopicType.FIXED_TIME,
        lambda topic: control.reschedule(topic, 0, [b"due", b"waiting"], ("at", 2**52), "me"),
    ),
    "promote": of_queue(
        TopicType.FIXED_TIME,
        lambda topic: control.promote(topic, 0, [b"due", b"later", b"waiting"], "me"),
    ),
    "pause": of_queue(TopicType.FIXED_TIME, lambda topic: control.pause(topic, 0, True, "me")),
    "pause: resume": of_queue(TopicType.FIXED_TIME, lambda topic: control.pause(topic, 0, False, "me")),
    "purge_backlog": of_queue(TopicType.FIXED_TIME, lambda topic: control.purge_backlog(topic, 0, "store", 10)),
    "confirm": of_queue(TopicType.FIXED_TIME, lambda topic: control.confirm(topic, 0)),
    "audit": of_queue(TopicType.FIXED_TIME, lambda topic: control.audit(topic, 0, "me", "purge", "all", "begun")),
    "worker_beat": of_queue(TopicType.FIXED_TIME, lambda topic: shared.worker_beat("w", "{}", 60_000)),
    "redrive": of_queue(TopicType.FIXED_TIME, _redrive),
    "adopt": of_queue(TopicType.FIXED_TIME, lambda topic: control.adopt(topic, 0, "zk", "other")),
    "purge_dead": of_queue(TopicType.FIXED_TIME, lambda topic: dead.purge_dead(topic, 0, [b"dead"], actor="me")),
    "list_dead": of_queue(TopicType.FIXED_TIME, lambda topic: dead.list_dead(topic, 0, 0, 10)),
    "find": of_queue(TopicType.FIXED_TIME, lambda topic: viewing.find(topic, 0, b"resent")),
    "search": of_queue(TopicType.FIXED_TIME, lambda topic: viewing.search(topic, 0, b"*", 10, ("0", "0", "0", "0"))),
    "dead_reasons": of_queue(TopicType.FIXED_TIME, lambda topic: dead.dead_reasons(topic, 0, 10)),
    "workers": of_queue(TopicType.FIXED_TIME, lambda topic: shared.workers()),
    "peek": of_queue(TopicType.FIXED_TIME, lambda topic: viewing.peek(topic, 0, "store", 0, 10)),
    "look": of_queue(TopicType.FIXED_TIME, lambda topic: claims.look(topic, [0])),
    "stats": of_queue(TopicType.FIXED_TIME, lambda topic: viewing.stats(topic, 0)),
}
