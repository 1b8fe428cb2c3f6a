"""Rounds of a coordinator that fail in the middle: without servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rmq._model.times import monotonic_s
from rmq._ownership.machine import WorkerMachine
from rmq._ownership.member import Member
from rmq._ownership.requests import UNKNOWN, Create, Reply, Request
from rmq._ownership.rounds import Rounds
from rmq._ownership.values import LEADER, Ownership, WorkerDocument
from rmq.errors import CoordinationError
from tests.support.simulated_zookeeper import SimulatedZooKeeper

SESSION_S = 9.0


class Client:
    """A connection to a simulated keeper; `meanwhile` is called before the reply to the `at`-th call from then on."""

    name = "ZooKeeper"
    session_timeout_s = SESSION_S

    def __init__(self, *, may_lead: bool = True) -> None:
        self.may_lead, self.meanwhile, self.at = may_lead, lambda: None, 0
        self._nodes = SimulatedZooKeeper(SESSION_S)
        self.session = self._nodes.connect(None, 0.0)

    def ensure_chroot(self) -> None: ...

    def carry_out(
        self, session: int, requests: Sequence[Request], heard: Callable[[float], None] | None = None
    ) -> list[Reply]:
        if session != self.session:
            return [UNKNOWN] * len(requests)
        if not self.may_lead and any(isinstance(each, Create) and each.path == LEADER for each in requests):
            raise CoordinationError("no right to lead")
        replies = [self._nodes.carry_out(each, session, lambda: None) for each in requests]
        if heard is not None:
            heard(monotonic_s())
        self.at -= 1
        if self.at == 0:
            self.meanwhile()
        return replies


def test_a_round_that_fails_tells_that_slots_wait_for_marks() -> None:
    """They were given up to five seconds later: who gives them sleeps until it is told."""
    client: Any = Client(may_lead=False)
    member = Member("w", WorkerDocument({}), WorkerMachine(SESSION_S, 5.0), lambda: 0.0)
    member.transaction_ids.gated = True
    told: list[Any] = []
    rounds = Rounds(client, member, lambda: told.append(member.transaction_ids.awaits), threading.Lock())
    for _ in range(2):
        with pytest.raises(CoordinationError):
            rounds.step()
    assert told == [(client.session, 0)], "once for a connection"


class Watched(Rounds):
    """Rounds between whose reads and writes of their snapshot another thread runs."""

    meanwhile: list[Callable[[], object]]

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in ("_view", "_deadline_s"):
            self._let_run()
        return value

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in ("_view", "_deadline_s"):
            self._let_run()

    def _let_run(self) -> None:
        called, self.meanwhile = self.__dict__.get("meanwhile", []), []  # it does not interrupt itself
        for each in called:
            each()
        self.meanwhile += called


def owning() -> tuple[Any, Any, Member, Ownership]:
    """Return rounds that own a slot, with their client and member."""
    client: Any = Client()
    member = Member("w", WorkerDocument({"t": 1}), WorkerMachine(SESSION_S, 5.0), monotonic_s)
    member.definitions = {"t": b'{"slots":1,"version":4,"min_reader":4}'}
    rounds = Watched(client, member, lambda: None, threading.RLock())
    assert rounds.step()
    assert rounds.step()
    (ownership,) = rounds.owned().values()
    return rounds, client, member, ownership


@pytest.mark.parametrize("call", [0, 1, 2, 3])
def test_whose_session_has_ended_is_no_owner_at_any_time(call: int) -> None:
    """Another thread hears of the end while a reply of before is on its way, and the round counts it as contact.

    It hears of it during this call of the round, or while the snapshot is published.
    """
    rounds, client, member, ownership = owning()
    session = client.session
    assert rounds.still_owner(ownership)
    said: list[bool] = []

    def end() -> None:
        client.session = None
        rounds.session_ended()
        rounds.meanwhile = [lambda: said.append(rounds.still_owner(ownership))]

    if not call:
        end()
        member.machine.contacted(session, monotonic_s())
        rounds.meanwhile = [lambda: rounds._publish(0)]
        said.append(rounds.still_owner(ownership))
    else:
        client.meanwhile, client.at = end, call
        rounds.step()
        said.append(rounds.still_owner(ownership))
    assert client.session is None
    assert said
    assert not any(said)


def test_the_contact_of_a_later_session_does_not_make_the_slots_of_an_earlier_one_owned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process stands still between the watchdog's check and the round; meanwhile the session expires."""
    now_s = [monotonic_s()]
    monkeypatch.setattr("rmq._ownership.rounds.monotonic_s", lambda: now_s[0])
    monkeypatch.setattr(f"{__name__}.monotonic_s", lambda: now_s[0])
    rounds, client, _, ownership = owning()
    session, publish, said = client.session, rounds._publish, list[bool]()

    def publish_and_pause(breaks: int) -> None:
        publish(breaks)
        if client.session == session:
            now_s[0] += 2 * SESSION_S
            client.session = client._nodes.connect(None, now_s[0])

    client.meanwhile, client.at = lambda: said.append(rounds.still_owner(ownership)), 1
    rounds._publish = publish_and_pause
    rounds.step()
    assert said == [False]
