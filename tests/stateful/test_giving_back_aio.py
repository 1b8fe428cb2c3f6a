"""Random histories of a listener's lanes in an event loop, another consumer and real Redis.

Handlers wait until they are told to return or to fail, also while a round is under way, or while the watcher gives back
what waits behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from rmq._claiming.claimer import Claimer
from rmq._listening.handler_calls import ListenerSetup
from rmq._listening.listener import Listener
from rmq._listening.listener_thread import PIGGYBACK_S, ListenerThread
from rmq._model.deliveries import Delivery
from rmq._slots.slots import SlotWriter
from rmq._transport.connections import Connections
from rmq._transport.script_library import ScriptLibrary
from rmq._transport.urls import parse_url
from rmq.aio.backend import EventLoop, gate
from rmq.aio.greenlets import Tasks, wait
from rmq.aio.listener import HandlersInTasks
from tests.stateful.databases import on_database
from tests.stateful.holding_machine import AGES, HoldingMachine, play
from tests.support.slots import scripts_under_test

# the histories take the place of the event loop's own rounds
# pyright: reportPrivateUsage=false

TURNS = 20
"""So often the other tasks have their turn: enough for all lanes to begin or end what they can."""

QUICK_S, SLOW_S = 0.0001, 1.0
"""So long a message seems to have taken a handler: of quick ones many are claimed ahead, of slow ones none."""

AHEAD = 12
"""Most messages that are claimed ahead."""

RETURNS, FAILS, SLOWLY = ENDS = ("returns", "fails", "returns, and was slow")


class LanesMachine(HoldingMachine):
    """Handlers run beside the rounds, in lanes."""

    url: str
    scripts: ScriptLibrary

    @initialize(
        slots=st.sampled_from([1, 2, 4]),
        batch=st.sampled_from([None, None, 1, 3]),
        lanes=st.sampled_from([1, 2, 3]),
        known=st.booleans(),
    )
    def begin_lanes(self, slots: int, batch: int | None, lanes: int, known: bool) -> None:
        self.begin(slots)
        self.loop, self.tasks = asyncio.new_event_loop(), Tasks(gate)
        self.running: list[tuple[list[bytes], asyncio.Future[bool]]] = []
        """What each handler has, and whether it is to fail: it waits until that is told."""
        self.lanes, self.batch, self.per_message_s = lanes, batch or 1, QUICK_S
        handler = self.handle if batch is None else self.handle_batch
        self.do(lambda: self.open(Listener(self.topic, handler, batch=batch, threads=lanes)))
        if known:
            self.worker.calls.prefetch.note(1, QUICK_S)

    def open(self, listener: Listener) -> None:
        """Make the thread, in the event loop."""
        blocking = EventLoop()
        self.in_loop = connections = Connections(parse_url(self.url), scripts=self.scripts, blocking=blocking)
        claimer = Claimer(connections, self.topic, range(self.topic.slots), source=SlotWriter(connections, self.topic))
        self.worker = ListenerThread(ListenerSetup(listener, blocking.event()), claimer, 0, HandlersInTasks)
        self.in_tasks = cast("HandlersInTasks", self.worker.handlers)
        prefetch = self.worker.calls.prefetch
        note = prefetch.note
        prefetch.note = lambda messages, _: note(messages, messages * self.per_message_s)  # type: ignore[method-assign]

    def do(self, *actions: Callable[[], object]) -> list[object]:
        """Have the thread do several things at the same time; then let the lanes go on. Return the results."""

        async def do_all() -> list[object]:
            results = await asyncio.gather(*(self.tasks.run(action) for action in actions))
            for _ in range(TURNS):
                await asyncio.sleep(0)
            return results

        return self.loop.run_until_complete(do_all())

    def handle(self, delivery: Delivery) -> None:
        self.handle_batch([delivery])

    def handle_batch(self, deliveries: list[Delivery]) -> None:
        handler = [each.content for each in deliveries], self.loop.create_future()
        self.running.append(handler)
        contents, told = handler
        fails = wait(told)
        self.running.remove(handler)
        if fails:
            self.failed.update(contents)
            raise RuntimeError("told to fail")
        self.returned.update(contents)

    def tell(self, place: int, end: str) -> None:
        """Tell one of the handlers how to end."""
        _, told = self.running[place % len(self.running)]
        if told.done():
            return
        self.per_message_s = SLOW_S if end == SLOWLY else QUICK_S
        if end == SLOWLY:
            self.in_tasks._filled_s -= AGES
        told.set_result(end == FAILS)

    def look_now(self) -> None:
        """Do a round, as after a look."""
        self.look()
        self.in_tasks._note_change()
        self.in_tasks.round()

    def work(self) -> None:
        """Do rounds until there is nothing to do but to wait."""
        for _ in range(10 + 2 * len(self.sent)):
            [busy] = self.do(self.in_tasks.round)
            changed = self.in_tasks._changed.is_set()
            may_claim = len(self.running) < self.lanes and not self.worker.claimer.wait_s(1.0)
            if not (busy or changed or may_claim):
                return
        raise AssertionError("rounds without end")

    def relieve(self) -> None:
        """Do what the watcher does, for handlers that began very long ago."""
        self.in_tasks._begun_s -= AGES
        self.in_tasks.relieve()

    @rule()
    def do_a_round(self) -> None:
        self.do(self.look_now)

    @rule(numbers=st.lists(st.integers(1, 8), min_size=1, max_size=4))
    def much_comes(self, numbers: list[int]) -> None:
        """So much that some of it waits behind handlers."""
        for slot, number in enumerate(numbers):
            self.send(number, slot)
        self.do(self.look_now)

    @rule()
    def work_until_it_waits(self) -> None:
        self.work()
        assert self.worker.going_back() == 0
        assert len(self.running) == self.lanes or not self.worker.waiting

    @precondition(lambda self: self.running)
    @rule(place=st.integers(0, 2), end=st.sampled_from(ENDS))
    def a_handler_ends(self, place: int, end: str) -> None:
        self.tell(place, end)
        self.do()

    @precondition(lambda self: self.running)
    @rule(place=st.integers(0, 2), end=st.sampled_from(ENDS))
    def a_handler_ends_during_a_round(self, place: int, end: str) -> None:
        self.tell(place, end)
        self.do(self.look_now)

    @rule()
    def the_watcher_comes_by(self) -> None:
        behind = len(self.worker.waiting)
        self.do(self.relieve)
        assert not (self.running and self.worker.waiting)
        if behind:
            self.do(self.look_now)
            assert not self.worker.waiting, "claimed anew what handlers that hang do not begin"

    @rule()
    def the_watcher_comes_by_during_a_round(self) -> None:
        self.do(self.look_now, self.relieve)

    @precondition(lambda self: self.running)
    @rule(place=st.integers(0, 2), end=st.sampled_from(ENDS))
    def a_handler_ends_while_the_watcher_gives_back(self, place: int, end: str) -> None:
        self.tell(place, end)
        self.do(self.relieve, self.look_now)

    @rule()
    def all_is_handled(self) -> None:
        """With handlers that return, nothing stays behind, though nobody looks again."""
        self.look()
        self.in_tasks._note_change()
        self.work()
        while self.running:
            self.tell(0, RETURNS)
            self.do()
            self.work()
        assert not self.worker.waiting
        assert not self.places()[0]

    @invariant()
    def no_more_handlers_than_lanes(self) -> None:
        assert len(self.running) <= self.lanes
        assert all(len(contents) <= self.batch for contents, _ in self.running)

    def teardown(self) -> None:
        if not hasattr(self, "worker"):
            return
        self.worker.setup.stopping.set()
        self.loop.run_until_complete(self.stop())
        self.loop.close()
        assert not self.running
        self.check_the_end()

    async def stop(self) -> None:
        """Stop, while handlers run and end one after the other."""
        finishing = asyncio.create_task(self.tasks.run(self.worker.handlers.finish))
        while self.running:
            await asyncio.sleep(0)
            self.tell(0, RETURNS)
            await asyncio.sleep(0)
        await finishing
        await self.tasks.run(self.in_loop.close)


@pytest.fixture(scope="module")
def machine(redis_url: str) -> Iterator[type[LanesMachine]]:
    scripts = scripts_under_test()
    with on_database(redis_url, 3, LanesMachine, scripts) as machine:
        machine.url, machine.scripts = f"{redis_url}?db=3", scripts
        yield machine


@pytest.mark.hypothesis
@pytest.mark.timeout(0)
def test_what_lanes_have_claimed_is_held_handled_or_back(
    machine: type[LanesMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.aio.listener.MOST_PREFETCHED", AHEAD)
    monkeypatch.setattr("rmq._claiming.prefetch_size._WEIGHT", 1.0)
    play(machine, monkeypatch)


def test_what_would_wait_behind_a_hanging_batch_is_not_claimed_again(machine: type[LanesMachine]) -> None:
    history = machine()
    history.begin_lanes(slots=1, batch=3, lanes=1, known=False)
    history.much_comes([1])
    history.much_comes([1])
    assert [contents for contents, _ in history.running] == [[b"0"]]
    assert [each.content for each in history.worker.waiting] == [b"1"]
    history.the_watcher_comes_by()
    history.teardown()


def test_an_ack_waits_for_a_quarter_of_a_second_in_all(
    machine: type[LanesMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    history, waits = machine(), list[float]()
    history.begin_lanes(slots=2, batch=None, lanes=1, known=False)
    history.much_comes([1, 1])
    history.a_handler_ends(place=0, end=SLOWLY)
    history.do_a_round()
    [[acked]] = history.worker.held.deferred.values()
    acked.lease_until_s -= 0.2
    in_tasks = history.in_tasks
    monkeypatch.setattr(in_tasks._changed, "wait", waits.append)
    history.do(in_tasks.room, in_tasks.wait)  # the look shows that all lanes are busy
    assert len(waits) == 1
    assert waits[0] <= PIGGYBACK_S - 0.2
    history.teardown()
