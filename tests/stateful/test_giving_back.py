"""Random histories of a listener's thread that handles in turn, another consumer and real Redis.

The thread's handlers return, fail, or hang until the watcher has come by.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from rmq import Delivery, Listener
from tests.stateful.databases import on_database
from tests.stateful.holding_machine import AGES, HoldingMachine, play
from tests.support.core import ACKED, ClaimPlanner, ListenerSetup, Worker, monotonic_s
from tests.support.slots import scripts_under_test

RETURNS, FAILS, HANGS, FAILS_AFTER = BEHAVIOURS = ("returns", "fails", "hangs", "hangs and fails")


class InTurnMachine(HoldingMachine):
    """A handler runs within the round."""

    @initialize(slots=st.sampled_from([1, 2, 4]), batch=st.sampled_from([None, None, 1, 3]))
    def begin_in_turn(self, slots: int, batch: int | None) -> None:
        self.begin(slots)
        handler = self.handle if batch is None else self.handle_batch
        setup = ListenerSetup(Listener(self.topic, handler, batch=batch), threading.Event())
        planner = ClaimPlanner(self.connections, self.topic, range(slots), source=self.writer)
        self.worker = Worker(setup, planner, 0)
        self.behaviours: deque[str] = deque()
        self.kept_back: list[object] = []
        """What had not been given back when the watcher had come by."""

    def handle(self, delivery: Delivery) -> None:
        self.handle_batch([delivery])

    def handle_batch(self, deliveries: list[Delivery]) -> None:
        behaviour = self.behaviours.popleft() if self.behaviours else RETURNS
        worker = self.worker
        contents = [each.content for each in deliveries]
        if behaviour in (HANGS, FAILS_AFTER):
            worker.calls.began_s = monotonic_s() - AGES
            worker.return_stalled()  # as the watcher does in a thread of its own
            # an ack may go with a later call: of a whole claim in a slot with failures it is asked for by name then
            held = [each for claim in worker.held.all() for each in claim.deliveries(claim.held_rows())]
            left = [each for each in held if each.content not in contents and each.outcome is not ACKED]
            self.kept_back += [*left, *worker.waiting]  # an error here would be a handler's failure
        if behaviour in (FAILS, FAILS_AFTER):
            self.failed.update(contents)
            raise RuntimeError(behaviour)
        self.returned.update(contents)

    @rule(behaviours=st.lists(st.sampled_from(BEHAVIOURS), max_size=4))
    def do_a_round(self, behaviours: list[str]) -> None:
        self.behaviours = deque(behaviours)
        self.look()
        self.worker.round()

    @rule()
    def do_a_quiet_round(self) -> None:
        """One that may find nothing due, and settles a slot then."""
        self.worker.round()

    @invariant()
    def the_watcher_leaves_nothing(self) -> None:
        assert self.kept_back == []

    def teardown(self) -> None:
        if not hasattr(self, "worker"):
            return
        self.worker.setup.stopping.set()
        self.worker.finish()
        self.check_the_end()


@pytest.fixture(scope="module")
def machine(redis_url: str) -> Iterator[type[InTurnMachine]]:
    with on_database(redis_url, 3, InTurnMachine, scripts_under_test()) as machine:
        yield machine


@pytest.mark.hypothesis
@pytest.mark.timeout(0)
def test_what_a_thread_has_claimed_is_held_handled_or_back(
    machine: type[InTurnMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(machine, monkeypatch)


class CutWaiting(deque[Any]):
    """What waits, where another thread stops the listener while the rest of a range is put back."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self.worker = worker

    def appendleft(self, part: Any, /) -> None:
        self.worker.setup.stopping.set()
        self.worker.stop_starting()
        super().appendleft(part)


def test_a_stop_while_a_range_is_cut_leaves_none_of_it_waiting(machine: type[InTurnMachine]) -> None:
    history = machine()
    history.begin_in_turn(slots=1, batch=3)
    history.send(number=8, slot=0)
    history.worker.calls.prefetch.note(1, 0.0001)
    history.worker.waiting = CutWaiting(history.worker)
    history.do_a_round([])
    assert not history.returned
    assert not history.worker.waiting
    history.teardown()
