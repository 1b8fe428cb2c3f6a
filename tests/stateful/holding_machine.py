"""A listener's thread, another consumer and real Redis: what is claimed is held, handled or back.

The thread is driven step by step. Few nacks go along with a call, so that giving back takes several.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from rmq import Delivery, Outcome, Topic, TopicType
from rmq._claiming.claim_planner import ClaimPlanner
from rmq._claiming.fetcher import Fetcher
from rmq._listening.worker import Worker
from tests.support.core import (
    ACKED,
    RELEASED,
    Connections,
    EncodedMessage,
    QueueBroker,
    deliveries_of,
    select,
    slot_keys,
)
from tests.support.holders import HolderStub

EXAMPLES = {"default": 100, "ci": 100, "mutants": 100, "long": 3_000}
STEPS = 25
GO_ALONG = 2
"""Nacks that go along with a call."""
AGES = 1_000_000_000.0
"""How long a handler that hangs seems to have run, in seconds."""


class HoldingMachine(RuleBasedStateMachine):
    """What is sent is in one place: in the backlog, in flight with one of the two, waiting for a retry, or done."""

    connections: Connections
    client: redis.Redis
    worker: Worker
    """The subclass makes it, and says when it does a round."""

    def begin(self, slots: int) -> None:
        """Begin with an empty topic."""
        self.client.flushdb()
        self.topic = topic = Topic("held", TopicType.PRIORITY, slots=slots)
        self.writer = QueueBroker(self.connections, topic)
        self.other = Fetcher(ClaimPlanner(self.connections, topic, range(slots), source=self.writer), HolderStub())
        self.others: list[Delivery] = []
        self.sent: set[bytes] = set()
        self.slot_of: dict[bytes, int] = {}
        self.returned, self.failed = Counter[bytes](), Counter[bytes]()
        self.acked_by_other: set[bytes] = set()

    def do(self, action: Callable[[], object]) -> object:
        """Have the thread do something."""
        return action()

    def look(self) -> None:
        """Let the thread expect messages everywhere, as after a look."""
        for slot in range(self.topic.slots):
            self.worker.planner.expect(slot)

    @rule(number=st.integers(1, 8), slot=st.integers(0, 3))
    def send(self, number: int, slot: int) -> None:
        slot %= self.topic.slots
        contents = [b"%d" % (len(self.sent) + index) for index in range(number)]
        self.writer.send(slot, [EncodedMessage(slot, content, 100, None) for content in contents])
        self.sent.update(contents)
        self.slot_of.update(dict.fromkeys(contents, slot))
        self.worker.planner.expect(slot)

    @rule()
    def settle(self) -> None:
        self.do(self.worker.settle_only)
        assert not self.worker.held.deferred

    @rule()
    def give_back(self) -> None:
        self.do(self.worker.release_waiting)
        assert (list(self.worker.waiting), self.worker.going_back()) == ([], 0)

    @rule(limit=st.integers(1, 4))
    def another_claims(self, limit: int) -> None:
        for slot in range(self.topic.slots):
            self.other._planner.expect(slot)  # pyright: ignore[reportPrivateUsage]
        self.others += self.other.claim(limit).deliveries

    @rule(number=st.integers(1, 3), outcome=st.sampled_from([ACKED, RELEASED]))
    def another_settles(self, number: int, outcome: Outcome) -> None:
        settled, self.others = self.others[:number], self.others[number:]
        for delivery in settled:
            delivery.claim.settle_open(outcome, (delivery.row,))
            if outcome is ACKED:
                self.acked_by_other.add(delivery.content)
        waiting = select(settled)
        while waiting:  # what did not go along, or has to be acked by name, goes with the next call
            waiting = self.other.claim(0, waiting).unsent

    def places(self) -> tuple[Counter[bytes], Counter[bytes], Counter[bytes]]:
        """What is in store, in prepare and in retry, in all slots."""
        found = Counter[bytes](), Counter[bytes](), Counter[bytes]()
        for slot in range(self.topic.slots):
            keys = slot_keys(self.topic.name, slot)
            for counted, key in zip(found, (keys.store, keys.prepare, keys.retry), strict=True):
                members: Any = self.client.zrange(key, 0, -1)
                counted.update(members)
        return found

    def held(self) -> tuple[set[bytes], set[bytes]]:
        """What the thread holds, and what of it is being settled."""
        held = [(each, claim.busy) for claim in self.worker.held.all() for each in claim.deliveries(claim.held_rows())]
        return {each.content for each, _ in held}, {each.content for each, busy in held if busy and each.outcome}

    @invariant()
    def each_is_in_one_place(self) -> None:
        store, prepare, retry = self.places()
        done = set(self.returned) | self.acked_by_other
        assert set(store + prepare + retry) | done == self.sent
        assert not (store + prepare + retry) - Counter(self.sent), "in two places"
        held, on_the_way = self.held()
        theirs = {each.content for each in self.others}
        unknown = set(prepare) - held - theirs
        assert not unknown or self.worker.claims.has_earlier
        assert (held - on_the_way) | theirs <= set(prepare)
        assert not held & theirs
        waiting = deliveries_of(self.worker.waiting)
        assert {each.content for each in waiting} <= held
        assert all(each.outcome is None for each in waiting)
        assert not set(self.returned) & set(store + retry), "what was handled came back"
        assert not self.returned or self.returned.most_common(1)[0][1] == 1, "handled twice"
        assert not set(self.returned) & self.acked_by_other

    def check_the_end(self) -> None:
        """Check what there is after the thread has finished."""
        store, prepare, retry = self.places()
        assert (self.worker.held.all(), self.worker.claims.has_earlier) == ([], False)
        assert set(prepare) == {each.content for each in self.others}
        assert set(retry) <= set(self.failed)
        assert set(store + prepare + retry) == self.sent - set(self.returned) - self.acked_by_other


def play(machine: type[HoldingMachine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Play random histories, with bounds so low that they are met."""
    monkeypatch.setattr("rmq._claiming.fetcher.PIGGYBACKED_NACKS", GO_ALONG)
    monkeypatch.setattr("rmq._listening.worker.PIGGYBACKED_NACKS", GO_ALONG)
    monkeypatch.setattr("rmq._listening.worker.LEAST_ROOM", 1)
    monkeypatch.setattr("rmq._listening.worker.MOST_SETTLED", 1)
    profile = os.environ.get("RMQ_HYPOTHESIS_PROFILE") or "default"
    bounds = settings(max_examples=EXAMPLES[profile], stateful_step_count=STEPS)
    run_state_machine_as_test(machine, settings=bounds)
