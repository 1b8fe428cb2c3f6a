"""What rounds rely on, whoever keeps the nodes: a ZooKeeper, Redis, or the simulated one of the other tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol
from uuid import uuid4

import pytest
import redis

from rmq import RedisOwners
from rmq._broker.keys import OWNERS_KEYS
from rmq._ownership.redis_keeper import RedisKeeper
from rmq._ownership.requests import (
    UNKNOWN,
    Children,
    Create,
    Get,
    Look,
    OwnNodes,
    Put,
    Release,
    Reply,
    Request,
    Sync,
)
from rmq._ownership.values import Stat
from rmq._ownership.zookeeper import ZooKeeperClient
from tests.support.core import parse_url
from tests.support.simulated_zookeeper import SimulatedZooKeeper
from tests.support.waiting import wait_until


class Session(Protocol):
    """A session with a keeper, as these tests use it."""

    number: int

    def ask(self, *requests: Request) -> list[Reply]: ...

    def end(self) -> None: ...


Open = Callable[[], Session]


class RealSession:
    def __init__(self, client: Any) -> None:
        self.client, self.heard = client, list[float]()
        client.start()

        def connected() -> int | None:
            client.renew()
            return client.session

        self.number: int = wait_until(connected)
        client.ensure_chroot()

    def ask(self, *requests: Request) -> list[Reply]:
        return self.client.carry_out(self.number, requests, self.heard.append)

    def end(self) -> None:
        self.client.stop()


class SimulatedSession:
    def __init__(self, nodes: SimulatedZooKeeper) -> None:
        self.nodes, self.number = nodes, nodes.connect(None, 0.0)

    def ask(self, *requests: Request) -> list[Reply]:
        if self.number not in self.nodes.touched:
            return [UNKNOWN] * len(requests)
        return [self.nodes.carry_out(each, self.number, lambda: None) for each in requests]

    def end(self) -> None:
        self.nodes.touched[self.number] = float("-inf")
        self.nodes.expire(0.0)


@pytest.fixture(params=["zookeeper", "redis", "simulated"])
def open_session(request: pytest.FixtureRequest, redis_url: str, redis_client: redis.Redis) -> Iterator[Open]:
    with ExitStack() as stack:
        if request.param == "zookeeper":
            hosts, chroot = request.getfixturevalue("zookeeper").hosts, f"/contract-{uuid4().hex[:8]}"
            make = lambda: RealSession(ZooKeeperClient(hosts, chroot, 3.0, lambda: None, lambda: None))  # noqa: E731
        elif request.param == "redis":
            stack.callback(redis_client.delete, *OWNERS_KEYS.values())
            url, owners, told = parse_url(redis_url), RedisOwners(60), lambda: None
            make = lambda: RealSession(RedisKeeper(url, owners, told, told, told, told))  # noqa: E731
        else:
            nodes = SimulatedZooKeeper(60.0)
            make = lambda: SimulatedSession(nodes)  # noqa: E731

        def opened() -> Session:
            session = make()
            stack.callback(session.end)
            return session

        yield opened


@pytest.fixture
def session(open_session: Open) -> Session:
    made = open_session()
    made.ask(Create("/t", b"", False), Create("/me", b"", True))
    return made


def stat_of(reply: Reply) -> Stat:
    assert isinstance(reply, Stat), reply
    return reply


def test_a_node_is_created_once_and_only_below_a_parent(session: Session) -> None:
    replies = session.ask(
        Create("/t/a", b"1", True),
        Create("/t/a", b"2", True),
        Create("/missing/a", b"", True),
        Create("/missing/b", b"", False),
        Get("/t/a"),
        Look("/missing/a"),
    )
    stat = stat_of(replies[0])
    assert (stat.version, stat.session, stat.mzxid) == (0, session.number, stat.czxid)
    assert replies[1:] == [None, None, None, (b"1", stat), None]


def test_a_permanent_node_belongs_to_no_session(session: Session) -> None:
    (look,) = session.ask(Look("/t"))
    assert stat_of(look).session == 0


def test_numbers_only_grow(session: Session) -> None:
    numbers: list[int] = []
    for _ in range(3):
        made, _, node, _ = session.ask(
            Create("/t/a", b"", True), Put("/t/a", b"x", 0), Get("/t/a"), Release("/t/a", "/me")
        )
        assert isinstance(node, tuple)
        numbers += [stat_of(made).czxid, node[1].mzxid]
        assert node[1].czxid == stat_of(made).czxid
    assert numbers == sorted(set(numbers))


def test_data_is_set_in_the_version_that_was_read(session: Session) -> None:
    session.ask(Create("/t/a", b"old", False))
    assert session.ask(Put("/t/a", b"new", 1), Put("/t/a", b"new", 0), Put("/t/a", b"newer", 0)) == [False, True, False]
    (node,) = session.ask(Get("/t/a"))
    assert isinstance(node, tuple)
    assert (node[0], node[1].version) == (b"new", 1)
    assert session.ask(Put("/t/none", b"", 0)) == [False]


@pytest.mark.parametrize("data", [b"", b" ", b"1 2 3", bytes(range(256)), b"\n\r\n\0", "ä€😀".encode()])
def test_data_comes_back_as_it_was(session: Session, data: bytes) -> None:
    made, first, written, second = session.ask(
        Create("/t/a", data, False), Get("/t/a"), Put("/t/a", data + data, 0), Get("/t/a")
    )
    assert (first, written) == ((data, made), True)
    assert isinstance(second, tuple)
    assert second[0] == data + data


def test_children_are_those_of_one_node(session: Session) -> None:
    for path in ("/t/a", "/t/ab", "/t/a/x", "/t/a.b", "/tt", "/tt/y", "/t/a:ü"):
        session.ask(Create(path, b"", False))
    listed = session.ask(Children("/t"), Children("/t/a"), Children("/t/ab"), Children("/tt"), Children("/none"))
    assert [each if each is None else sorted(each) for each in listed] == [  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        ["a", "a.b", "a:ü", "ab"],
        ["x"],
        [],
        ["y"],
        None,
    ]
    session.ask(Release("/t/ab", "/me"))
    (left,) = session.ask(Children("/t"))
    assert isinstance(left, list)
    assert "ab" not in left


@pytest.mark.parametrize("open_session", ["redis", "simulated"], indirect=True)
def test_the_children_of_a_session_are_listed_and_the_others_counted(open_session: Open) -> None:
    first, second = open_session(), open_session()
    nodes = [("/t", False), ("/t/stays", False), ("/t/a", True), ("/t/a:ü", True), ("/tt", False), ("/tt/x", True)]
    first.ask(*(Create(path, b"", ephemeral) for path, ephemeral in nodes))
    second.ask(Create("/t/b", b"", True))
    asked = [Children(path, watch=True, own=True) for path in ("/t", "/tt", "/tt/x", "/none")]
    assert first.ask(*asked) == [OwnNodes(4, ["a", "a:ü"]), OwnNodes(1, ["x"]), OwnNodes(0, []), None]
    assert second.ask(*asked) == [OwnNodes(4, ["b"]), OwnNodes(1, []), OwnNodes(0, []), None]
    first.end()
    wait_until(lambda: second.ask(Sync(), *asked)[1:3] == [OwnNodes(2, ["b"]), OwnNodes(0, [])])


def test_a_node_is_deleted_only_while_the_guard_is_there(session: Session) -> None:
    session.ask(Create("/t/a", b"", True))
    assert session.ask(Release("/t/a", "/none"), Look("/t/a"))[0] is False
    assert session.ask(Look("/t/a")) != [None]
    assert session.ask(Release("/t/none", "/me"), Release("/t/none", "/none")) == [True, False]
    assert session.ask(Release("/t/a", "/me", 1), Release("/t/a", "/me", 0), Look("/t/a")) == [False, True, None]
    (made,) = session.ask(Create("/t/a", b"", True))
    assert session.ask(Release("/t/a", "/me", epoch=stat_of(made).czxid), Look("/t/a")) == [True, None]


def test_the_nodes_of_a_session_go_with_it(open_session: Open) -> None:
    first, second = open_session(), open_session()
    first.ask(Create("/t", b"", False), Create("/t/first", b"", True), Create("/t/stays", b"", False))
    second.ask(Create("/t/second", b"", True))
    first.end()
    wait_until(lambda: second.ask(Sync(), Look("/t/first"))[1] is None)
    (listed,) = second.ask(Children("/t"))
    assert sorted(listed) == ["second", "stays"]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
    assert first.ask(Sync(), Create("/t/late", b"", True)) == [UNKNOWN, UNKNOWN]
    assert second.ask(Look("/t/late")) == [None]


def test_one_session_sees_what_another_has_done(open_session: Open) -> None:
    first, second = open_session(), open_session()
    first.ask(Create("/t", b"", False))
    looks = (Sync(), Look("/t/a", watch=True), Get("/t/a", watch=True), Children("/t", watch=True))
    assert second.ask(*looks) == [True, None, None, []]
    assert second.ask(*looks) == [True, None, None, []]
    (made,) = first.ask(Create("/t/a", b"1", True))
    assert second.ask(*looks) == [True, made, (b"1", made), ["a"]]
    first.ask(Put("/t/a", b"2", 0))
    _, _, node, _ = second.ask(*looks)
    assert isinstance(node, tuple)
    assert node[0] == b"2"
    first.ask(Release("/t/a", "/t"))
    assert second.ask(*looks) == [True, None, None, []]


def test_a_thousand_nodes_in_one_batch(session: Session) -> None:
    made = session.ask(*(Create(f"/t/{number}", b"w", True) for number in range(1_024)))
    numbers = [stat_of(each).czxid for each in made]
    assert numbers == sorted(set(numbers))
    assert session.ask(*(Look(f"/t/{number}") for number in range(1_024))) == made
    (listed,) = session.ask(Children("/t"))
    assert isinstance(listed, list)
    assert len(listed) == 1_024
