"""How long the follower of ownership sleeps, and whom it tells: without servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rmq import Ownership, Topic, TopicType
from rmq._io.backend import Background
from rmq._ownership.follower import SLOTLESS_S, OwnershipFollower
from rmq._ownership.redis_identity import RedisIdentityCheck
from rmq._ownership.values import SlotKey
from rmq._servers.urls import parse_url
from rmq._transport.connections import Connections

OWNED: Mapping[SlotKey, Ownership] = {("shop.jobs", 0): Ownership("shop.jobs", 0, 7, "zk")}


class Shown:
    """A coordinator whose looks show one thing after the other, and then the last one."""

    def __init__(self, *looks: Mapping[SlotKey, Ownership]) -> None:
        self.on_change: Any = None
        self._looks = list(looks)

    def owned(self) -> Mapping[SlotKey, Ownership]:
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]

    def drain_within(self, drain_s: float) -> None: ...

    def start(self) -> None: ...

    def check_slots(self, topics: Mapping[str, int]) -> None: ...


class User:
    """Who uses the slots: remembers which those were."""

    place = "shop.jobs"
    topic = Topic("shop.jobs", TopicType.PRIORITY, slots=1)

    def __init__(self) -> None:
        self.used: Mapping[SlotKey, Ownership] = {}

    def refresh_ownership(self, owned: Mapping[SlotKey, Ownership]) -> bool:
        self.used = owned
        return False


@pytest.fixture
def connections() -> Connections:
    return Connections(parse_url("redis://127.0.0.1:1"))  # nobody connects


def test_it_sleeps_long_only_where_its_users_have_slots(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots came between the look of the users and that of the follower, which then slept as if they had them."""
    user = User()
    coordinator: Any = Shown({}, OWNED)
    follower = OwnershipFollower(coordinator, [user], connections, 30.0)
    sleeps: list[float] = []

    def wait(timeout_s: float) -> None:
        sleeps.append(timeout_s)
        if not user.used:
            assert timeout_s <= SLOTLESS_S
        if len(sleeps) == 2:
            follower._stopping.set()

    monkeypatch.setattr(follower._changed, "wait", wait)
    follower.run()
    assert user.used == OWNED
    assert len(sleeps) == 2


def test_it_tells_the_caller_of_a_change_as_well(connections: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took the place of a caller's `on_change`, which was never called again."""
    told: list[str] = []
    coordinator: Any = Shown({})
    coordinator.on_change = lambda: told.append("caller")
    follower = OwnershipFollower(coordinator, [], connections, 30.0)
    monkeypatch.setattr(Background, "start", lambda _job: None)
    monkeypatch.setattr(RedisIdentityCheck, "begin", lambda _identity_check: None)
    monkeypatch.setattr(RedisIdentityCheck, "refuse_foreign_workers", lambda _identity_check: None)
    follower.start()
    coordinator.on_change()
    assert told == ["caller"]
    assert follower._changed.is_set()


def test_a_worker_is_settled_once_it_owns_what_is_assigned_to_it(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cluster(Shown):
        connected = True
        still_to_come: frozenset[int] = frozenset()

        def awaited(self, topic: str) -> frozenset[int]:
            assert topic == "shop.jobs"
            return self.still_to_come

    cluster: Any = Cluster({})
    follower = OwnershipFollower(cluster, [User()], connections, 30.0)
    assert follower.unsettled() == ["no slots are assigned to this worker yet"]
    monkeypatch.setattr(follower, "_settles_s", 0.0)
    assert follower.unsettled() == []  # there are more workers than slots
    cluster.still_to_come = frozenset({0})
    assert follower.unsettled() == ["1 slot of topic shop.jobs assigned to this worker, not owned yet"]
    cluster.connected = False
    assert follower.unsettled() == ["no session in which slots can be owned"]
