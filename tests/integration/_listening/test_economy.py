"""Listeners with `idle="economy"` on a real Redis, in real time: both sides."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from rmq import RangeMergeMessage, Topic, TopicType, WorkerInfo
from rmq.errors import RedisUnavailableError
from tests.conftest import wait_until
from tests.support.core import WORKER_INFOS_KEY, WORKERS_KEY, Heartbeat
from tests.support.servers import RedisServer
from tests.support.sides import SIDES, side_of

TOPIC = Topic("shop.idle", TopicType.RANGE_MERGE, slots=4)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis of its own, so that nobody else's commands count."""
    with RedisServer() as server:
        yield server


def calls(server: RedisServer, command: str) -> int:
    with server.connect() as plain:
        stats = cast("dict[str, Any]", plain.info("commandstats"))
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


def polls(server: RedisServer) -> bool:
    """Return whether somebody calls a script in the next two seconds."""
    before = calls(server, "evalsha")
    time.sleep(2.0)
    return calls(server, "evalsha") > before


@pytest.mark.parametrize("name", SIDES)
def test_it_polls_no_more_once_hints_are_proven_and_hears_them(name: str, server: RedisServer) -> None:
    seen: list[str] = []
    with side_of(name) as side, side.client(server.url) as client:
        client.listener(TOPIC)(lambda delivery: seen.append(delivery.text))
        client.start(idle="economy")
        wait_until(lambda: calls(server, "publish") > 0)
        wait_until(lambda: not polls(server))
        client.producer(TOPIC).send(RangeMergeMessage("a", time_range_ms=1))
        wait_until(lambda: seen == ["a"])
        [worker] = client.workers()
        assert (worker.beat_s, worker.stale) == (40.0, False)
        client.stop()


def test_a_report_that_is_gone_comes_again(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq._listening.watcher.BEAT_S", 0.1)
    monkeypatch.setattr("rmq._listening.listener_set.BEAT_S", 0.1)
    with side_of("threads") as side, side.client(server.url) as client, server.connect() as plain:
        client.listener(TOPIC)(print)
        client.start(idle="economy")
        wait_until(lambda: calls(server, "zadd") > 5)
        scripts = calls(server, "hset")
        wait_until(lambda: calls(server, "zadd") > 20)
        assert calls(server, "hset") == scripts, "a report that says nothing new is a plain ZADD"
        plain.delete(WORKERS_KEY, WORKER_INFOS_KEY)
        wait_until(lambda: len(client.workers()) == 1)


def test_a_report_that_failed_is_tried_again_soon(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one in economy comes after 40 s: others would have forgotten the worker in between."""
    report, tries = Heartbeat._report, list[int]()

    def failing_once(self: Heartbeat, info: WorkerInfo) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise RedisUnavailableError("no answer")
        report(self, info)

    monkeypatch.setattr(Heartbeat, "_report", failing_once)
    monkeypatch.setattr("rmq._listening.listener_set.BEAT_S", 0.1)
    with side_of("threads") as side, side.client(server.url) as client:
        client.listener(TOPIC)(print)
        client.start(idle="economy")
        wait_until(lambda: len(client.workers()) == 1)
        [worker] = client.workers()
        assert (worker.beat_s, len(tries)) == (40.0, 2)


def test_it_reads_the_time_of_redis_again(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its clock goes slower, or stands still as a machine sleeps, it looked silent for good."""
    began_s = time.monotonic()
    monkeypatch.setattr("rmq._listening.listener_set.monotonic_s", lambda: began_s + (time.monotonic() - began_s) / 2)
    monkeypatch.setattr("rmq._listening.listener_set.TRUST_S", 0.3)
    monkeypatch.setattr("rmq._listening.watcher.BEAT_S", 0.1)
    monkeypatch.setattr("rmq._listening.listener_set.BEAT_S", 0.1)
    with side_of("threads") as side, side.client(server.url) as client:
        client.listener(TOPIC)(print)
        client.start(idle="economy")
        wait_until(lambda: len(client.workers()) == 1)
        time.sleep(4.0)
        wait_until(lambda: client.workers()[0].silent_ms < 1_000)


def test_without_the_right_to_publish_it_polls(server: RedisServer) -> None:
    """Who may subscribe and not publish proves nothing."""
    with server.connect() as plain:
        plain.execute_command("ACL", "SETUSER", "mute", "on", ">pw", "~*", "&*", "+@all", "-publish")
    seen: list[str] = []
    with side_of("threads") as side, side.client(server.url.replace("://", "://mute:pw@")) as client:
        client.listener(TOPIC)(lambda delivery: seen.append(delivery.text))
        client.start(idle="economy")
        client.producer(TOPIC).send(RangeMergeMessage("a", time_range_ms=1))
        wait_until(lambda: seen == ["a"])
        assert polls(server)
