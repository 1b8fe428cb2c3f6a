"""A slot with something in every key, and a call of every script on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rmq import Fixed, Merge, Owner, RangeMergeMessage, Sum, Topic, TopicType, WhenFull
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
from tests.support.slots import T0, SlotState, scripts_under_test

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

Case = Callable[[Topic], Call[Any]]

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


LIMITS: dict[str, dict[str, Any]] = {
    "send: limits": {"max_backlog": 3, "when_full": WhenFull.DROP, "ttl": "1m"},
    "send: ages": {"ties": "oldest"},
    "send_merged": {"merge": Merge(Sum(), window=Fixed("1m"))},
    "send_merged: chunk": {"merge": Merge(Sum(), window=Fixed("1m"))},
}
"""What the topic of a case needs."""


def _redrive(topic: Topic) -> Call[Any]:
    kind = "at" if topic.type.timed else "priority"
    return dead.redrive(topic, 0, (kind, 2**52), overwrite=False, contents=[b"dead"], actor="me")


WRITERS: dict[str, tuple[TopicType, Case]] = {
    "untold_dead": (
        TopicType.PRIORITY,
        lambda topic: dead.untold(topic, 0, Turn("ops", "me", 60_000, T0 - 5_000), 10),
    ),
    "send: after": (TopicType.RANGE_MERGE, _send),
    "send: priority": (TopicType.PRIORITY, _send),
    "send: ages": (TopicType.PRIORITY, _send),
    "send: several": (TopicType.FIXED_TIME, _send_many),
    "send: at": (TopicType.FIXED_TIME, _send),
    "send: limits": (TopicType.PRIORITY, _send),
    "send: delay": (TopicType.FIXED_TIME, _send_delayed),
    "send_merged": (TopicType.RANGE_MERGE, _send_merged),
    "claim": (
        TopicType.FIXED_TIME,
        lambda topic: claim_slot(topic, 0, 10, owner=OWNER, outcomes=Outcomes(acks=[(b"held", LIVE)], nacks=NACKS[1:])),
    ),
    "settle: acks": (
        TopicType.FIXED_TIME,
        lambda topic: settle_slot(topic, 0, Outcomes([(b"held", LIVE), (b"resent", LIVE)]), OWNER),
    ),
    "settle: nacks": (
        TopicType.FIXED_TIME,
        lambda topic: settle_slot(topic, 0, Outcomes(nacks=(*NACKS, Nack(b"expired", EXPIRED))), OWNER),
    ),
    "extend": (
        TopicType.FIXED_TIME,
        lambda topic: claims.extend(topic, 0, [(b"held", LIVE), (b"expired", EXPIRED)], OWNER),
    ),
    "cancel": (TopicType.FIXED_TIME, lambda topic: control.cancel(topic, 0, [b"due", b"patient", b"resent"], "me")),
    "reschedule": (
        TopicType.FIXED_TIME,
        lambda topic: control.reschedule(topic, 0, [b"due", b"waiting"], ("at", 2**52), "me"),
    ),
    "promote": (
        TopicType.FIXED_TIME,
        lambda topic: control.promote(topic, 0, [b"due", b"later", b"waiting"], "me"),
    ),
    "pause": (TopicType.FIXED_TIME, lambda topic: control.pause(topic, 0, True, "me")),
    "purge_backlog": (TopicType.FIXED_TIME, lambda topic: control.purge_backlog(topic, 0, "store", 10)),
    "confirm": (TopicType.FIXED_TIME, lambda topic: control.confirm(topic, 0)),
    "audit": (TopicType.FIXED_TIME, lambda topic: control.audit(topic, 0, "me", "purge", "all", "begun")),
    "worker_beat": (TopicType.FIXED_TIME, lambda topic: shared.worker_beat("w", "{}", 60_000)),
    "redrive": (TopicType.FIXED_TIME, _redrive),
    "adopt": (TopicType.FIXED_TIME, lambda topic: control.adopt(topic, 0, "zk", "other")),
    "purge_dead": (TopicType.FIXED_TIME, lambda topic: dead.purge_dead(topic, 0, [b"dead"], actor="me")),
}

READERS: dict[str, tuple[TopicType, Case]] = {
    "list_dead": (TopicType.FIXED_TIME, lambda topic: dead.list_dead(topic, 0, 0, 10)),
    "find": (TopicType.FIXED_TIME, lambda topic: viewing.find(topic, 0, b"resent")),
    "search": (TopicType.FIXED_TIME, lambda topic: viewing.search(topic, 0, b"*", 10, ("0", "0", "0", "0"))),
    "dead_reasons": (TopicType.FIXED_TIME, lambda topic: dead.dead_reasons(topic, 0, 10)),
    "workers": (TopicType.FIXED_TIME, lambda topic: shared.workers()),
    "peek": (TopicType.FIXED_TIME, lambda topic: viewing.peek(topic, 0, "store", 0, 10)),
    "look": (TopicType.FIXED_TIME, lambda topic: claims.look(topic, [0])),
    "stats": (TopicType.FIXED_TIME, lambda topic: viewing.stats(topic, 0)),
}
