"""Rounds of a coordinator that fail in the middle: without servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rmq._ownership.documents import LEADER, WorkerDocument
from rmq._ownership.machine import WorkerMachine
from rmq._ownership.member import Member
from rmq._ownership.requests import Create, Reply, Request
from rmq._ownership.rounds import Rounds
from rmq.errors import CoordinationError
from tests.support.simulated_zookeeper import SimulatedZooKeeper

SESSION_S = 9.0


class Client:
    """A connection to a simulated ZooKeeper that lets nobody lead."""

    name = "ZooKeeper"
    session_timeout_s = SESSION_S

    def __init__(self) -> None:
        self._nodes = SimulatedZooKeeper(SESSION_S)
        self.session = self._nodes.connect(None, 0.0)

    def ensure_chroot(self) -> None: ...

    def carry_out(
        self, session: int, requests: Sequence[Request], heard: Callable[[float], None] | None = None
    ) -> list[Reply]:
        if any(isinstance(each, Create) and each.path == LEADER for each in requests):
            raise CoordinationError("no right to lead")
        return [self._nodes.carry_out(each, session, lambda: None) for each in requests]


def test_a_round_that_fails_tells_that_slots_wait_for_marks() -> None:
    """They were given up to five seconds later: who gives them sleeps until it is told."""
    client: Any = Client()
    member = Member("w", WorkerDocument({}), WorkerMachine(SESSION_S, 5.0), lambda: 0.0)
    member.transaction_ids.gated = True
    told: list[Any] = []
    rounds = Rounds(client, member, lambda: told.append(member.transaction_ids.awaits), threading.Lock())
    for _ in range(2):
        with pytest.raises(CoordinationError):
            rounds.step()
    assert told == [(client.session, 0)], "once for a connection"
