"""An owner of a stream's slot handles entries in their order, even where it gives some back that it has not begun."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from rmq import Coordinator, Delivery, Listener, Owner, Ownership, RmqClient, StreamMessage, Topic, TopicType
from tests.conftest import MakeTopic
from tests.support.clients import texts
from tests.support.core import (
    PIGGYBACKED_NACKS,
    POSTPONE_S,
    RELEASED,
    ClaimPlanner,
    Connections,
    ListenerSetup,
    Worker,
    deliveries_of,
    join_group,
)
from tests.support.waiting import wait_until

OWNER = Owner(7, "ensemble")

# `_carry_out`: the tests take the place of the thread
# pyright: reportPrivateUsage=false


class CoordinatorStub:
    """Owns the only slot."""

    def __init__(self, name: str) -> None:
        self._name = name

    def owned(self) -> dict[tuple[str, int], Ownership]:
        return {(self._name, 0): Ownership(self._name, 0, OWNER.epoch, OWNER.ensemble)}


@pytest.fixture
def topic(client: RmqClient, make_topic: MakeTopic) -> Topic:
    return make_topic(TopicType.STREAM, checked=False, slots=1)


def an_owner(
    connections: Connections, topic: Topic, handler: Callable[[Any], object], batch: int | None = None
) -> Worker:
    """A thread of a listener that owns the slot; nothing of it runs by itself."""
    source = join_group(connections, topic, "g", "all")
    planner = ClaimPlanner(connections, topic, [0], source=source)
    planner.set_owned({0: OWNER})
    listener = Listener(topic, handler, group="g", start="all", batch=batch)
    coordinator = cast("Coordinator", CoordinatorStub(listener.ownership_name))
    return Worker(ListenerSetup(listener, threading.Event(), coordinator), planner, 0)


def send(client: RmqClient, topic: Topic, number: int) -> None:
    client.producer(topic).send_many(StreamMessage(f"m{i:03}") for i in range(number))


def claim(worker: Worker, limit: int) -> list[str]:
    """Claim and settle as a round does; return what may be begun."""
    worker._carry_out(worker.planner.plan(limit, worker.held.settled()))
    return texts_waiting(worker)


def texts_waiting(worker: Worker) -> list[str]:
    return texts(deliveries_of(worker.waiting))


def test_nothing_is_read_behind_an_entry_that_cannot_be_given_back_yet(
    client: RmqClient, topic: Topic, connections: Connections
) -> None:
    """Its renewal is on its way, so that its release waits for that."""
    send(client, topic, 4)
    worker = an_owner(connections, topic, lambda delivery: None)
    assert claim(worker, 2) == ["m000", "m001"]
    held = worker.take_waiting(2)
    for claim_, rows in held:
        claim_.settle_open(RELEASED, rows)
        claim_.busy = True
    wait_until(lambda: worker.planner.wait_s(POSTPONE_S) == 0)
    assert claim(worker, 2) == []
    for claim_, _ in held:
        claim_.busy = False
    wait_until(lambda: worker.planner.wait_s(POSTPONE_S) == 0)
    assert claim(worker, 3) == ["m000", "m001", "m002"]
    assert [delivery.attempt for delivery in deliveries_of(worker.waiting)] == [1, 1, 1]


def test_nothing_is_read_while_more_is_given_back_than_goes_with_a_call(
    client: RmqClient, topic: Topic, connections: Connections
) -> None:
    number = PIGGYBACKED_NACKS + 2
    send(client, topic, number + 1)
    worker = an_owner(connections, topic, lambda delivery: None)
    assert len(claim(worker, number)) == number
    worker.stop_starting()
    wait_until(lambda: worker.planner.wait_s(POSTPONE_S) == 0)
    assert claim(worker, 1000) == []
    wait_until(lambda: len(claim(worker, 1000)) == number + 1)  # one call takes up to 64 that came back
    assert texts_waiting(worker) == [f"m{i:03}" for i in range(number + 1)]


@pytest.mark.parametrize("batch", [None, 3])
def test_what_comes_behind_an_entry_that_was_not_begun_in_time_is_not_begun_either(
    client: RmqClient, topic: Topic, connections: Connections, batch: int | None
) -> None:
    handled: list[str] = []

    def handle(given: Delivery | list[Delivery]) -> None:
        handled.extend(each.text for each in (given if isinstance(given, list) else [given]))

    send(client, topic, 5)
    worker = an_owner(connections, topic, handle, batch)
    assert len(claim(worker, 4)) == 4
    worker.waiting[0].claim.lease_until_s = 0.0  # the renewals of others in the slot went in another call
    worker.start_waiting()
    assert handled == []
    wait_until(lambda: worker.planner.wait_s(POSTPONE_S) == 0)
    claim(worker, 5)
    worker.start_waiting()
    assert handled == [f"m{i:03}" for i in range(5)]


def test_what_a_claim_brings_while_an_entry_before_it_is_given_up_goes_back_with_it(
    client: RmqClient, topic: Topic, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the watcher does with what waits behind slow handlers, while the next claim is under way."""
    send(client, topic, 4)
    worker = an_owner(connections, topic, lambda delivery: None)
    assert claim(worker, 2) == ["m000", "m001"]
    carry_out = worker.claims.carry_out

    def give_up_meanwhile(*args: Any) -> Any:
        round_ = carry_out(*args)
        worker.stop_starting()
        return round_

    monkeypatch.setattr(worker.claims, "carry_out", give_up_meanwhile)
    assert claim(worker, 2) == []
    monkeypatch.undo()
    wait_until(lambda: worker.planner.wait_s(POSTPONE_S) == 0)
    assert claim(worker, 4) == ["m000", "m001", "m002", "m003"]
