"""Worker processes that are killed, frozen and stopped, several on the same slots without ZooKeeper."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from rmq import ImmediateRetry, PriorityMessage, RmqClient, Topic, TopicType
from tests.support.clients import left_in, stats_of
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]


class Ledger:
    """What the workers have written down."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, *kinds: str) -> list[tuple[str, int, str, int]]:
        """(kind, pid, content, attempt) of these kinds, in the order of writing."""
        if not self.path.exists():
            return []
        rows = [line.split() for line in self.path.read_text().splitlines()]
        return [(kind, int(pid), content, int(attempt)) for kind, pid, content, attempt in rows if kind in kinds]

    def of(self, pid: int, *kinds: str) -> list[str]:
        """The contents that one process noted."""
        return [content for _, owner, content, _ in self.lines(*kinds) if owner == pid]

    def check_one_hand_only(self, dead: set[int]) -> None:
        """No content is begun while another process or thread has it in hand; what a killed one held is free."""
        in_hand: dict[str, int] = {}
        for kind, pid, content, attempt in self.lines("begin", "end", "stale-end"):
            if kind == "begin":
                holder = in_hand.get(content)
                assert holder is None or holder in dead, f"{content} begun by {pid} while {holder} has it ({attempt=})"
                in_hand[content] = pid
            elif in_hand.get(content) == pid:
                del in_hand[content]


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[RmqClient]:
    with RmqClient(server.url) as client:
        yield client


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def start(server: RedisServer, ledger: Ledger) -> Iterator[Start]:
    """Start a worker on a topic and wait until it is there."""
    workers: list[subprocess.Popen[bytes]] = []

    def start(topic: Topic, handle_ms: float = 1.0, threads: int = 2, drain_s: float = 30.0) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.support.worker", server.url, topic.name, str(ledger.path)]
        command += ["--handle-ms", str(handle_ms), "--threads", str(threads), "--drain-s", str(drain_s)]
        worker = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
        workers.append(worker)
        wait_until(lambda: any(pid == worker.pid for _, pid, _, _ in ledger.lines("started")))
        return worker

    yield start
    for worker in workers:
        worker.kill()
        worker.wait()


def empty(client: RmqClient, topic: Topic) -> bool:
    return left_in(stats_of(client, topic))[:3] == (0, 0, 0)


def test_killed_in_the_middle_of_ten_thousand_messages(client: RmqClient, ledger: Ledger, start: Start) -> None:
    """Three processes share all slots; one after the other is killed with -9. Nothing is lost, and only what was in
    flight in a killed one is delivered again."""
    topic = Topic("killed", TopicType.PRIORITY, slots=8, lease=timedelta(seconds=5), retry=ImmediateRetry())
    number = 10_000
    producer = client.producer(topic)
    workers = [start(topic, handle_ms=2) for _ in range(3)]
    killed: set[int] = set()
    in_flight: set[str] = set()
    for turn, worker in enumerate(workers[:2]):
        half = range(number // 2 * turn, number // 2 * (turn + 1))
        producer.send_many(PriorityMessage(f"m{i}", 100 + i % 50) for i in half)
        wait_until(lambda worker=worker: len(ledger.of(worker.pid, "end")) > 100)
        worker.send_signal(signal.SIGSTOP)  # so that what it holds can be read before it dies
        in_flight |= {peeked.text for peeked in client.inspect(topic).peek("prepare", limit=1_000)}
        worker.kill()
        worker.wait()
        killed.add(worker.pid)
        assert stats_of(client, topic).backlog > 1_000  # still in the middle
        if len(killed) == 1:
            workers.append(start(topic, handle_ms=2))
    wait_until(lambda: empty(client, topic), 60)
    begun = Counter(content for _, _, content, _ in ledger.lines("begin"))
    assert set(begun) == {f"m{i}" for i in range(number)}
    stats = stats_of(client, topic)
    assert (stats.total("acked"), stats.dead) == (number, 0)
    twice = {content for content, times in begun.items() if times > 1}
    print(f"{len(twice)} of {number} twice, {len(in_flight)} were in flight, {stats.total('expired')} leases expired")
    assert twice <= in_flight
    assert in_flight
    first_hands = {content: pid for _, pid, content, _ in reversed(ledger.lines("begin"))}
    assert {first_hands[content] for content in twice} <= killed
    assert stats.total("delivered") == number + stats.total("expired") + stats.total("released")
    ledger.check_one_hand_only(killed)


def test_one_content_is_in_one_hand_only_though_it_is_sent_all_the_time(
    client: RmqClient, ledger: Ledger, start: Start
) -> None:
    """Several processes share all slots without ZooKeeper."""
    topic = Topic("one-hand", TopicType.PRIORITY, slots=4)
    producer = client.producer(topic)
    workers = [start(topic, handle_ms=2, threads=3) for _ in range(3)]

    def send_again() -> bool:
        producer.send_many(PriorityMessage(f"hot{i}", 100) for i in range(30))
        ended = Counter(pid for _, pid, _, _ in ledger.lines("end"))
        return len(ended) > 1 and sum(ended.values()) > 1_000

    wait_until(send_again)
    wait_until(lambda: empty(client, topic))
    handled = Counter(pid for _, pid, _, _ in ledger.lines("end"))
    print(f"handled {dict(handled)}")
    assert stats_of(client, topic).total("acked") == sum(handled.values())
    # each of them is awake, also one that always was too late above: alone, it handles all
    for _ in range(3):
        producer.send_many(PriorityMessage(f"cold{i}", 100) for i in range(30))
        wait_until(lambda: empty(client, topic))
        workers[-1].terminate()
        assert workers.pop().wait(30) == 0
    ledger.check_one_hand_only(set())


def test_frozen_for_longer_than_the_lease(client: RmqClient, ledger: Ledger, start: Start) -> None:
    """It is told, its late ack changes nothing, and the message is delivered again."""
    topic = Topic("frozen", TopicType.PRIORITY, slots=2, lease=timedelta(seconds=3), retry=ImmediateRetry())
    client.producer(topic).send(PriorityMessage("a", 100))
    worker = start(topic, handle_ms=9_000, threads=1)
    wait_until(lambda: ledger.of(worker.pid, "begin"))
    worker.send_signal(signal.SIGSTOP)
    with client.consumer(topic) as other:
        [again] = other.poll(timeout=50)
        assert (again.text, again.attempt) == ("a", 2)
        worker.send_signal(signal.SIGCONT)

        def held_and(condition: Callable[[], object]) -> Callable[[], bool]:
            """Whether it has come to that; the message is ours all the while."""
            return lambda: other.extend([again]) == [] and bool(condition())

        wait_until(held_and(lambda: ledger.of(worker.pid, "lost") == ["a"]))
        wait_until(held_and(lambda: ledger.of(worker.pid, "stale-end") == ["a"]))
        worker.send_signal(signal.SIGTERM)  # its last outcome is on the way at the latest now
        wait_until(held_and(lambda: worker.poll() == 0))
        assert left_in(stats_of(client, topic)) == (0, 1, 0, 0)
        assert again.ack()
    assert stats_of(client, topic).total("acked") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_handlers_finish_and_gives_back_the_rest_at_once(
    client: RmqClient, ledger: Ledger, start: Start, number: signal.Signals
) -> None:
    topic = Topic(f"stopped-by-{number.name}", TopicType.PRIORITY, slots=2)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 1_000 - i) for i in range(20))
    worker = start(topic, handle_ms=4_000, threads=2)
    wait_until(lambda: len(ledger.of(worker.pid, "begin")) == 2)
    worker.send_signal(number)
    wait_until(lambda: stats_of(client, topic).in_flight == 2)
    assert ledger.of(worker.pid, "end") == []  # given back while the handlers still run
    assert worker.wait(60) == 0
    assert sorted(ledger.of(worker.pid, "end")) == sorted(ledger.of(worker.pid, "begin"))
    assert ledger.of(worker.pid, "stopped") == ["-"]
    assert left_in(stats_of(client, topic)) == (18, 0, 0, 0)
    with client.consumer(topic) as consumer:
        found = consumer.poll()
        assert {delivery.attempt for delivery in found} == {1}  # no retry was used up
        assert len(found) == 18
        consumer.ack(found)


def test_the_limit_of_a_stop_is_respected(client: RmqClient, ledger: Ledger, start: Start) -> None:
    topic = Topic("limit", TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage("endless", 100))
    worker = start(topic, handle_ms=3_600_000, threads=1, drain_s=0.5)
    wait_until(lambda: ledger.of(worker.pid, "begin"))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert left_in(stats_of(client, topic)) == (0, 1, 0, 0)  # the lease settles it


def test_a_second_signal_ends_at_once(client: RmqClient, ledger: Ledger, start: Start) -> None:
    topic = Topic("second-signal", TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage("endless", 100))
    worker = start(topic, handle_ms=3_600_000, threads=1, drain_s=3_600)
    wait_until(lambda: ledger.of(worker.pid, "begin"))
    worker.send_signal(signal.SIGTERM)

    def ended() -> bool:
        worker.send_signal(signal.SIGTERM)  # until the first one has been taken
        return worker.poll() is not None

    wait_until(ended)
    assert worker.returncode == -signal.SIGTERM
