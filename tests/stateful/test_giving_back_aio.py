"""Random histories of a listener's lanes in an event loop, another consumer and real Redis.

Handlers wait until they are told to return or to fail, also while a round is under way, or while the watcher gives back
what waits behind them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from rmq import Delivery, Listener
from rmq._claiming.claim_planner import ClaimPlanner
from rmq._listening.handler_invoker import ListenerSetup
from rmq._listening.worker import PIGGYBACK_S
from rmq.aio.backend import EventLoop, call_semaphore
from rmq.aio.greenlets import TaskGroup, wait
from rmq.aio.listener import TaskWorker
from tests.stateful.databases import on_database
from tests.stateful.holding_machine import AGES, HoldingMachine, play
from tests.support.core import Connections, QueueBroker, ScriptLibrary, deliveries_of, monotonic_s, parse_url
from tests.support.slots import scripts_under_test

# the histories take the place of the event loop's own rounds
# pyright: reportPrivateUsage=false

TURNS = 20
"""How many turns the other tasks get: enough for all lanes to begin or end what they can."""

QUICK_S, SLOW_S = 0.0001, 1.0
"""How long a message seems to take a handler, in seconds. Many quick ones are claimed ahead, and no slow ones."""

AHEAD = 12
"""At most so many messages are claimed ahead."""

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
        owned=st.booleans(),
    )
    def begin_lanes(self, slots: int, batch: int | None, lanes: int, known: bool, owned: bool = False) -> None:
        self.begin(slots)
        self.loop, self.tasks = asyncio.new_event_loop(), TaskGroup(call_semaphore)
        self.running: list[tuple[list[bytes], asyncio.Future[bool]]] = []
        """What each handler has, and whether it is to fail: it waits until that is told."""
        self.lanes, self.batch, self.owned, self.per_message_s = lanes, batch or 1, owned, QUICK_S
        handler = self.handle if batch is None else self.handle_batch
        self.do(lambda: self.open(Listener(self.topic, handler, batch=batch, threads=lanes)))
        if known:
            self.worker.calls.prefetch.note(1, QUICK_S)

    def open(self, listener: Listener) -> None:
        """Make the thread, in the event loop."""
        runtime = EventLoop()
        self.in_loop = connections = Connections(parse_url(self.url), scripts=self.scripts, runtime=runtime)
        planner = ClaimPlanner(
            connections, self.topic, range(self.topic.slots), source=QueueBroker(connections, self.topic)
        )
        self.worker = self.in_tasks = TaskWorker(ListenerSetup(listener, runtime.event()), planner, 0)
        self.in_tasks._owned = self.owned
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
        self.in_tasks.permitted_round()

    def rounds(self) -> None:
        """Do rounds, as the thread does until it waits."""
        in_tasks = self.in_tasks
        for _ in range(10 + 2 * len(self.sent)):
            if in_tasks.permitted_round() or in_tasks._changed.is_set():
                continue
            for_lanes = in_tasks._full or not in_tasks._free(in_tasks._max_tasks)
            if for_lanes or self.worker.planner.wait_s(1.0):
                return
        raise AssertionError("rounds without end")

    def work(self) -> None:
        """Do rounds until the thread waits, and no lane wakes it."""
        self.do(self.rounds)
        while self.in_tasks._changed.is_set():
            self.do(self.rounds)

    def waits_behind_others(self) -> bool:
        """Return whether no lane may begin what waits: an owner has one lane for a slot."""
        busy = self.in_tasks._busy.keys() if self.owned else set[int]()
        return len(self.running) == self.lanes or {claim.slot for claim, _ in self.worker.waiting} <= busy

    def return_stalled(self) -> None:
        """Do what the watcher does, for handlers that began very long ago."""
        self.in_tasks._begun_s -= AGES
        self.in_tasks.return_stalled()

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
        assert self.waits_behind_others()

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
        self.do(self.return_stalled)
        assert not (self.running and self.worker.waiting)
        if behind and len(self.running) == self.lanes:
            self.do(self.look_now)
            assert not self.worker.waiting, "claimed anew what handlers that hang do not begin"

    @rule()
    def the_watcher_comes_by_during_a_round(self) -> None:
        self.do(self.look_now, self.return_stalled)

    @precondition(lambda self: self.running)
    @rule(place=st.integers(0, 2), end=st.sampled_from(ENDS))
    def a_handler_ends_while_the_watcher_gives_back(self, place: int, end: str) -> None:
        self.tell(place, end)
        self.do(self.return_stalled, self.look_now)

    @precondition(lambda self: self.running and self.owned)
    @rule()
    def messages_take_long(self) -> None:
        slow = set(self.in_tasks._busy)
        for slot in slow:
            self.in_tasks._busy[slot] -= AGES
        self.do(self.look_now)
        assert not {claim.slot for claim, _ in self.worker.waiting} & slow

    @rule()
    def all_is_handled(self) -> None:
        """With handlers that return, nothing stays behind, though nobody looks again."""
        self.in_tasks._busy.update(dict.fromkeys(self.in_tasks._busy, monotonic_s()))
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

    @invariant()
    def an_owner_handles_a_slot_in_one_lane(self) -> None:
        slots = Counter(slot for contents, _ in self.running for slot in {self.slot_of[each] for each in contents})
        assert not self.owned or max(slots.values(), default=1) == 1

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
        finishing = asyncio.create_task(self.tasks.run(self.in_tasks.finish))
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
    monkeypatch.setattr("rmq._claiming.rounds._WEIGHT", 1.0)
    play(machine, monkeypatch)


def test_while_lanes_work_as_much_again_is_claimed(
    machine: type[LanesMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else lanes and Redis would work in turns where handlers never wait."""
    monkeypatch.setattr("rmq.aio.listener.MOST_BATCHED", 3)
    history = machine()
    history.begin_lanes(slots=1, batch=3, lanes=1, known=True)
    history.send(number=8, slot=0)
    held: list[int] = []
    for _ in range(3):
        history.do(history.look_now)
        held.append(sum(map(len, history.worker.held.claims)))
    assert held == [3, 6, 6]
    history.all_is_handled()
    history.teardown()


def test_what_comes_while_a_lane_hangs_does_not_keep_what_waits_behind_it(machine: type[LanesMachine]) -> None:
    history = machine()
    history.begin_lanes(slots=1, batch=3, lanes=1, known=True)
    history.send(number=8, slot=0)
    history.do(history.look_now)
    assert len(history.running) == 1
    history.in_tasks._begun_s -= AGES
    history.send(number=1, slot=0)
    history.do(history.look_now)  # what came is no sign of life
    assert history.in_tasks.waiting
    history.do(history.in_tasks.return_stalled)
    assert not history.in_tasks.waiting
    history.all_is_handled()
    history.teardown()


def test_nothing_is_claimed_ahead_beside_bodies_that_fill_a_claim(
    machine: type[LanesMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = machine()
    history.begin_lanes(slots=1, batch=3, lanes=1, known=True)
    monkeypatch.setattr("rmq.aio.listener.CLAIM_BYTES", 0)
    history.send(number=8, slot=0)
    history.do(history.look_now)
    history.do(history.look_now)
    assert sum(map(len, history.worker.held.claims)) == 3
    monkeypatch.undo()
    history.all_is_handled()
    history.teardown()


def test_what_would_wait_behind_a_hanging_batch_is_not_claimed_again(machine: type[LanesMachine]) -> None:
    history = machine()
    history.begin_lanes(slots=1, batch=3, lanes=1, known=False)
    history.much_comes([1])
    history.much_comes([1])
    assert [contents for contents, _ in history.running] == [[b"0"]]
    assert [each.content for each in deliveries_of(history.worker.waiting)] == [b"1"]
    history.the_watcher_comes_by()
    history.teardown()


def test_a_lane_that_has_not_begun_takes_the_place_of_one_message(machine: type[LanesMachine]) -> None:
    """What an owner holds behind a handler that hangs must not keep it from claiming for lanes that are free."""
    history = machine()
    history.begin_lanes(slots=4, batch=None, lanes=4, known=False, owned=True)
    history.work()  # from now on only those slots are visited to which something is sent
    history.send(number=2, slot=0)
    history.do(history.rounds)
    history.do(history.return_stalled)
    assert (len(history.running), len(history.worker.waiting), history.in_tasks._held_up) == (1, 0, True)
    history.do(history.rounds)
    assert (len(history.running), len(history.worker.waiting)) == (1, 1)
    history.send(number=1, slot=1)
    history.do(history.rounds)
    assert [len(history.running), history.running[1][0]] == [2, [b"2"]]
    assert not history.in_tasks._full, "nothing wakes it then before a handler ends"
    history.teardown()


def test_a_slot_whose_handler_hangs_takes_no_place_of_others(
    machine: type[LanesMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a worker owns its slots, nothing of that slot can begin in another lane."""
    monkeypatch.setattr("rmq._claiming.claim_planner.POSTPONE_S", 60.0)
    history = machine()
    history.begin_lanes(slots=2, batch=None, lanes=3, known=False, owned=True)
    history.work()
    history.send(number=8, slot=0)
    history.send(number=8, slot=1)
    history.work()

    def running_in(slot: int) -> list[int]:
        running = [contents for contents, _ in history.running]
        return [place for place, [content] in enumerate(running) if history.slot_of[content] == slot]

    assert running_in(0)
    history.in_tasks._busy[0] -= AGES
    while places := running_in(1):
        history.tell(places[0], SLOWLY)
        history.do()
        history.work()
    assert [history.slot_of[content] for content in history.returned] == [1] * 8
    assert not history.worker.waiting
    history.tell(0, RETURNS)
    history.do()
    history.work()
    assert running_in(0), "the slot is claimed from at once"
    history.all_is_handled()
    assert len(history.returned) == 16
    history.teardown()


def test_an_ack_waits_for_a_quarter_of_a_second_in_all(
    machine: type[LanesMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    history, waits = machine(), list[float]()
    monkeypatch.setattr("rmq._listening.worker.PIGGYBACK_S", AGES)  # however slow this machine is
    history.begin_lanes(slots=2, batch=None, lanes=1, known=False)
    history.much_comes([1, 1])
    history.a_handler_ends(place=0, end=SLOWLY)
    history.do_a_round()
    [[acked]] = history.worker.held.deferred.values()
    now_s = acked.lease_until_s - history.topic.lease_s + 0.2
    monkeypatch.setattr("rmq.aio.listener.monotonic_s", lambda: now_s)
    monkeypatch.setattr(history.in_tasks._changed, "wait", waits.append)
    history.do(history.in_tasks.room, history.in_tasks.wait)  # `room` notes that all lanes are busy
    assert waits == [pytest.approx(PIGGYBACK_S - 0.2)]
    history.teardown()
