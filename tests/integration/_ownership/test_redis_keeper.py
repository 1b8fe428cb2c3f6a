"""The client of the script that keeps nodes: what it counts as contact, what it keeps, and what it doubts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
import redis

from rmq import RedisOwners
from rmq._model.times import monotonic_s
from rmq._ownership.machine import WorkerMachine
from rmq._ownership.redis_keeper import RedisCoordinator, RedisKeeper
from rmq._ownership.requests import UNKNOWN, Children, Create, Get, Look, Sync
from rmq._ownership.values import Stat
from tests.simulation.planting import edited, resolved
from tests.support.core import OWNERS_KEYS, parse_url
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

SLOT = ("t", 0)


class Watched:
    """A keeper, and the calls that it has sent."""

    def __init__(self, url: str) -> None:
        self.broke, self.doubts, self.ends = 0, 0, 0
        told: Any = (lambda: None, self._break, self._doubt, self._end)
        self.keeper: Any = RedisKeeper(parse_url(url), RedisOwners(60), *told)
        self.sent: list[float] = []
        run = self.keeper._connections.run

        def noted(call: Any) -> Any:
            self.sent.append(monotonic_s())
            return run(call)

        self.keeper._connections.run = noted
        self.keeper.renew()
        self.sent.clear()

    def _break(self) -> None:
        self.broke += 1

    def _doubt(self) -> None:
        self.doubts += 1

    def _end(self) -> None:
        self.ends += 1

    def ask(self, *requests: Any, heard: Callable[[float], None] | None = None) -> Any:
        return self.keeper.carry_out(self.keeper.session, requests, heard)


@pytest.fixture
def make(redis_url: str, redis_client: redis.Redis) -> Iterator[Callable[[], Watched]]:
    made: list[Watched] = []

    def opened() -> Watched:
        made.append(Watched(redis_url))
        return made[-1]

    yield opened
    for each in made:
        each.keeper._connections.close()
    redis_client.delete(*OWNERS_KEYS.values())


def contact_counts_from_the_call(watched: Watched) -> None:
    heard: list[float] = []
    watched.ask(Sync(), heard=heard.append)
    assert heard[0] <= watched.sent[0], "the session lives for a timeout from when the call was sent at the earliest"


def answers_are_kept_while_nothing_changes(watched: Watched) -> None:
    other = Watched(watched.keeper._connections.url.url)
    reads = (Look("/a"), Get("/a"), Children("/a"))
    assert watched.ask(Sync(), *reads) == [True, None, None, None]
    sent = len(watched.sent)
    assert watched.ask(*reads) == [None] * 3, "unsent: the round has just heard that nothing has changed"
    assert len(watched.sent) == sent
    (made,) = other.ask(Create("/a", b"1", False))
    other.keeper._connections.close()
    assert watched.ask(Sync(), *reads) == [True, made, (b"1", made), []]
    assert watched.ask(*reads) == [made, (b"1", made), []]


def lost_transactions_are_doubted(watched: Watched) -> None:
    server = redis.Redis.from_url(watched.keeper._connections.url.url)
    before = server.dump(OWNERS_KEYS["state"])
    watched.ask(Sync(), Create("/b", b"", False))
    watched.keeper.known += 3_600_000  # the clock of the new master is an hour behind
    server.restore(OWNERS_KEYS["state"], 0, before, replace=True)  # pyright: ignore[reportArgumentType]
    server.close()
    known = watched.keeper.known
    watched.ask(Sync(), Look("/b"))
    assert watched.doubts == 1
    (made,) = watched.ask(Create("/c", b"", False))
    assert made.czxid > known


def hints_wait_as_long_as_rounds_cost(watched: Watched) -> None:
    watched.ask(Sync(), *(Look(f"/a{number}") for number in range(2_999)))
    assert watched.keeper._take_hint() == pytest.approx(0.3)
    assert watched.keeper._take_hint() == pytest.approx(0.1)
    watched.ask(Create("/owners", b"", False), Create("/owners/t", b"", False))
    watched.ask(*(Create(f"/owners/t/{number}", b"", True) for number in range(1_000)))
    watched.keeper._take_hint()
    watched.ask(Children("/owners/t", own=True), *(Look("/a") for _ in range(1_000)))
    assert watched.keeper._take_hint() == pytest.approx(0.2001)
    watched.keeper.session_timeout_s = 0.3
    assert watched.keeper._take_hint() == pytest.approx(0.05)


KEEPER = "rmq._ownership.redis_keeper:RedisKeeper"
CHECKS = [
    (contact_counts_from_the_call, f"{KEEPER}._carry_out", "heard(sent_s)", "heard(monotonic_s())"),
    (answers_are_kept_while_nothing_changes, f"{KEEPER}._carry_out", "if kept and len(reads)", "if kept or len(reads)"),
    (lost_transactions_are_doubted, f"{KEEPER}._call", "self._doubt()", "pass"),
    (hints_wait_as_long_as_rounds_cost, f"{KEEPER}._carry_out", "len(each.names)", "0"),
]


@pytest.mark.parametrize("check", [check for check, *_ in CHECKS], ids=lambda check: check.__name__)
def test_it_holds(make: Callable[[], Watched], check: Callable[[Watched], None]) -> None:
    check(make())


@pytest.mark.parametrize(("check", "path", "old", "new"), CHECKS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_bug_is_found(
    make: Callable[[], Watched], check: Callable[[Watched], None], path: str, old: str, new: str
) -> None:
    place, name, _ = resolved(path)
    with mock.patch.object(place, name, edited(path, [(old, new)])), pytest.raises((AssertionError, KeyError)):
        check(make())


def test_a_redis_that_is_gone_breaks_the_connection_and_resumes_the_session() -> None:
    with RedisServer(["appendonly yes"]) as server:
        watched = Watched(server.url)
        session = watched.keeper.session
        server.kill()
        assert watched.ask(Sync(), Look("/a")) == [UNKNOWN, UNKNOWN]
        assert (watched.keeper.session, watched.broke, watched.ends) == (None, 1, 0)
        assert watched.keeper.refusal
        server.start()
        watched.keeper.renew()
        assert watched.keeper.session == session
        watched.keeper._connections.close()


def test_an_idle_worker_calls_once_in_a_sixth_of_its_timeout_and_changes_nothing(redis_url: str) -> None:
    """Twice until it has looked at each of its nodes again, 16 a round. With a timeout of 3 s, 2 calls a second."""
    coordinator: Any = RedisCoordinator(parse_url(redis_url), RedisOwners(600))
    rounds, keeper = coordinator._rounds, coordinator._keeper
    wait_until(rounds.step)
    coordinator.register_topic("t", '{"slots":40,"version":4,"min_reader":4}')
    coordinator.consume("t", 40)
    wait_until(lambda: rounds.step() and len(coordinator.owned()) == 40)
    assert rounds.step()
    number, run, calls = keeper.known, keeper._connections.run, list[Any]()
    keeper._connections.run = lambda call: calls.append(call) or run(call)
    assert all(rounds.step() for _ in range(10))
    assert len(calls) <= 10 + 3
    assert keeper.known == number
    assert rounds.pause_s() == pytest.approx(600 / 6, abs=1)
    keeper.stop()


def owns_nothing_once_its_session_has_ended() -> None:
    """Also not while it drains; but a connection that breaks says nothing about the session."""
    with RedisServer(["appendonly yes"]) as server, ExitStack() as ending:
        coordinator: Any = RedisCoordinator(parse_url(server.url), RedisOwners(60))
        ending.callback(coordinator._keeper._connections.close)  # of a planted bug, too, which ends it by an error
        step: Callable[[], bool] = coordinator._rounds.step

        def ownership() -> Any:
            wait_until(step)
            return wait_until(lambda: step() and coordinator.owned().get(SLOT))

        def end_session() -> None:
            with server.connect() as client:
                client.zrem(OWNERS_KEYS["sessions"], coordinator._keeper._last)

        wait_until(step)
        coordinator.register_topic("t", '{"slots":1,"version":4,"min_reader":4}')
        coordinator.consume("t", 1)
        owned = ownership()
        assert coordinator.still_owner(owned)
        end_session()
        assert not step()
        assert (coordinator.owned(), coordinator.still_owner(owned)) == ({}, False), "said in a round"

        with server.connect() as client:  # the nodes of the session that was taken away by hand
            client.delete(*OWNERS_KEYS.values())
        owned = ownership()
        server.kill()
        assert not step()
        assert (coordinator.owned(), coordinator.still_owner(owned)) == ({}, True), "nothing was said"
        server.start()
        end_session()
        assert not step()
        assert (coordinator.owned(), coordinator.still_owner(owned)) == ({}, False), "said to who would resume it"


def test_who_hears_that_its_session_has_ended_owns_nothing_at_once() -> None:
    owns_nothing_once_its_session_has_ended()


@pytest.mark.parametrize(
    ("path", "old"),
    [
        ("rmq._ownership.redis_keeper:RedisKeeper._call", "self._ended()"),
        ("rmq._ownership.rounds:Rounds.session_ended", "self._deadline_s = self._machine.deadline_s"),
    ],
)
def test_a_slot_that_is_kept_after_the_session_is_found(path: str, old: str) -> None:
    place, name, _ = resolved(path)
    with mock.patch.object(place, name, edited(path, [(old, "pass")])), pytest.raises(AssertionError):
        owns_nothing_once_its_session_has_ended()


def machine_that_owns() -> WorkerMachine:
    machine = WorkerMachine(9.0, 5.0, sample=0)
    machine.contacted(1, 0.0)
    machine.observed(1, {SLOT}, [SLOT], {SLOT: Stat(7, 0, 1)}, 0.0)
    assert machine.owned(0.0) == {SLOT: 7}
    return machine


def test_a_slot_with_a_newer_epoch_is_released_only_if_its_node_is_still_ours() -> None:
    machine = machine_that_owns()
    machine.outrun(SLOT, 7)
    assert machine.owned(0.0) == {SLOT: 7}, "the same epoch is no newer one"
    machine.outrun(SLOT, 8)
    assert machine.owned(0.0) == {}
    assert machine.doubtful({SLOT}, {SLOT}) == {SLOT}, "its node is read before anything is done"
    machine.observed(1, {SLOT}, [SLOT], {SLOT: Stat(7, 0, 1)}, 0.0)
    assert machine.plan(0.0).release == (SLOT,)
    machine.released(SLOT)
    assert machine.plan(0.0).acquire == (SLOT,)
    machine = machine_that_owns()
    machine.outrun(SLOT, 8)
    machine.observed(1, {SLOT}, [SLOT], {SLOT: Stat(8, 0, 2)}, 0.0)
    plan = machine.plan(0.0)
    assert (plan.release, plan.acquire) == ((), ()), "it is another worker's"


def test_where_only_own_nodes_are_listed_each_other_assigned_slot_is_looked_at() -> None:
    machine = machine_that_owns()
    other, stray = ("t", 1), ("t", 2)
    assert machine.doubtful({SLOT, other}, {SLOT, stray}, own=True) == {other, stray}
    machine.observed(1, {SLOT, other}, {SLOT, stray, other}, {other: None, stray: Stat(8, 0, 1)}, 0.0)
    assert (machine.plan(0.0).acquire, machine.revoking()) == ((other,), {stray})


def test_what_is_doubted_is_read_again() -> None:
    machine = machine_that_owns()
    assert machine.doubtful({SLOT}, {SLOT}) == set()
    machine.doubt()
    assert machine.doubtful({SLOT}, {SLOT}) == {SLOT}
    assert machine.owned(0.0) == {SLOT: 7}
