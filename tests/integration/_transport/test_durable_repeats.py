"""No durable call is confirmed before what its answer relies on is safe, whoever has written it.

From Redis 7.2 on WAIT and WAITAOF wait for the last write of their own connection only: one that repeats what another
has sent must not be confirmed by having nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import Any, NamedTuple

import pytest
import redis

from rmq import (
    DelayedQueue,
    Fixed,
    Merge,
    RangeMergeMessage,
    Retention,
    RmqClient,
    StreamMessage,
    Sum,
    Topic,
    TopicType,
)
from rmq.errors import DurabilityError, ReplyLostError
from tests.integration._transport.test_fsync import server_with
from tests.lua.durable_cases import CASES, made
from tests.support.core import Call, Connections, Durability, default_scripts, parse_durability, parse_url
from tests.support.link import LaggingLink
from tests.support.servers import RedisServer
from tests.support.slots import SlotUnderTest
from tests.support.waiting import wait_until

CALLS = [(case, full) for case in CASES for full in (False, True)]
PATIENCE_S, BRIEF_S = 30.0, 1.0
"""Timeouts of clients whose calls are confirmed, and of those whose calls are not."""


class LaggingPair:
    """A master, and a replica that gets nothing any more once `link` holds."""

    def __init__(self, stack: ExitStack) -> None:
        self.master = stack.enter_context(RedisServer(("repl-diskless-sync yes", "repl-diskless-sync-delay 0")))
        self.link = LaggingLink(self.master.port)
        stack.callback(self.link.close)
        self.replica = stack.enter_context(RedisServer((f"replicaof 127.0.0.1 {self.link.port}",)))
        with self.replica.connect() as admin:
            wait_until(lambda: admin.info("replication")["master_link_status"] == "up")

    def promote(self) -> None:
        """Let the master die, and the replica take its place."""
        self.master.kill()
        with self.replica.connect() as admin:
            admin.execute_command("REPLICAOF", "NO", "ONE")


@pytest.fixture
def pair() -> Iterator[LaggingPair]:
    with ExitStack() as stack:
        yield LaggingPair(stack)


def connections_to(server: RedisServer, level: Durability, timeout_s: float) -> Connections:
    return Connections(parse_url(server.url), timeout_s=timeout_s, durability=level)


class Prepared(NamedTuple):
    """A durable call, and what it is."""

    name: str
    call: Call[Any]


Prepare = Callable[[RedisServer, str], list[Prepared]]


@pytest.fixture
def prepare() -> Iterator[Prepare]:
    """Prepares slots of topics whose names begin so; returns a call of each."""
    with ExitStack() as stack:

        def prepare(server: RedisServer, prefix: str) -> list[Prepared]:
            found: list[Prepared] = []
            for number, (case, full) in enumerate(CALLS):
                slot = SlotUnderTest(server.url, CASES[case].topic(f"{prefix}{number}"), default_scripts())
                stack.callback(slot.close)
                found.append(Prepared(f"{case}, {'full' if full else 'empty'}", made(slot, case, full)))
            return found

        yield prepare


def everything(server: RedisServer, prefix: str) -> dict[str, Any]:
    """Return all keys of topics whose names begin so, and what they hold, but for times of claims and hints."""
    with server.connect() as client:
        names: list[bytes] = sorted(client.keys(f"*{prefix}*"))  # pyright: ignore
        return {name.decode(): _held(client, name) for name in names}


def _held(client: redis.Redis, name: bytes) -> Any:
    match client.type(name):
        case b"zset":
            return client.zrange(name, 0, -1, withscores=True)
        case b"hash":
            return client.hgetall(name)
        case b"stream":
            return client.xrange(name)
        case kind:
            return kind


def confirmed(server: RedisServer, level: Durability, prepared: Sequence[Prepared]) -> list[str]:
    """Make each call, repeat it by the same client and then by another one; return those that were confirmed."""

    def tried(each: Prepared) -> list[str]:
        found: list[str] = []
        for tries in (("first", "repeated"), ("repeated by another client",)):
            with closing(connections_to(server, level, BRIEF_S)) as connections:
                for how in tries:
                    with suppress(DurabilityError, ReplyLostError):
                        connections.run(each.call)
                        found.append(f"{each.name}: {how}")
        return found

    with ThreadPoolExecutor(12) as pool:
        return [text for found in pool.map(tried, prepared) for text in found]


def test_what_replicas_lack_is_never_confirmed(pair: LaggingPair, prepare: Prepare) -> None:
    """Pitfall 20."""
    level = parse_durability("replicated")
    sure, late = prepare(pair.master, "sure"), prepare(pair.master, "late")
    with closing(connections_to(pair.master, level, PATIENCE_S)) as connections:
        for each in sure:
            connections.run(each.call)
    before = everything(pair.master, "sure")
    pair.link.hold()
    assert confirmed(pair.master, level, late) == []
    pair.promote()
    assert len(before) > len(CALLS)
    assert everything(pair.replica, "sure") == before


def test_what_is_not_on_disk_is_never_confirmed(prepare: Prepare) -> None:
    level = parse_durability("fsync")
    with server_with("appendonly yes", "appendfsync always") as server:
        calls = prepare(server, "t")
        with closing(connections_to(server, level, PATIENCE_S)) as connections:
            connections.check()
        server.config_set("appendfsync", "no")
        assert confirmed(server, level, calls) == []


def test_no_client_gets_a_repeat_confirmed_that_replicas_lack(pair: LaggingPair) -> None:
    """The same, as users see it: two clients, one after the other."""
    sums = Topic("sums", TopicType.RANGE_MERGE, merge=Merge(Sum(), window=Fixed("1m")))
    log = Topic("log", TopicType.STREAM, retention=Retention(max_length=10))
    with RmqClient(pair.master.url, durability="replicated", timeout_s=PATIENCE_S) as client:
        client.producer(sums).send(RangeMergeMessage("to cancel", body=1))
        client.producer(log)
        client.stream(log).add_group("moved")
        with DelayedQueue(client, "later") as queue:
            queue.offer("to remove", "1h")
    pair.link.hold()
    steps: dict[str, Callable[[RmqClient], object]] = {
        "once": lambda client: client.producer(sums).send(RangeMergeMessage("x", body=1), once="order:1"),
        "many, once": lambda client: client.producer(sums).send_many([RangeMergeMessage("y", body=1)], once="order:2"),
        "id": lambda client: client.producer(log).send(StreamMessage("entry", id="5-1")),
        "cancel": lambda client: client.control(sums).cancel("to cancel"),
        "pause": lambda client: client.control(sums).pause(),
        "remove": lambda client: DelayedQueue(client, "later").remove("to remove"),
        "change": lambda client: client.change_topic(sums.changed(max_retries=3)),
        "purge": lambda client: client.control(sums).purge("store", confirm="sums"),
        "purge the dead": lambda client: client.dead(sums).purge(),
        "redrive": lambda client: client.dead(sums).redrive(),
        "move a group": lambda client: client.stream(log).move_group("moved", "all"),
        "drop a group": lambda client: client.stream(log).remove_group("g"),
        "trim": lambda client: client.stream(log).trim(),
    }
    for name, step in steps.items():
        for _ in range(2):
            with RmqClient(pair.master.url, durability="replicated", timeout_s=BRIEF_S) as client:
                with pytest.raises(DurabilityError, match="0 of 1 replicas confirmed"):
                    print(name, step(client))
