"""Fan-out: groups of consumer processes on one stream topic, some of which are killed with -9.

    python -m tests.support.fan_out URL TOPIC GROUP LEDGER [ZOOKEEPER_HOSTS CHROOT]

is one consumer: it notes each entry that it handles before the entry is acked, one write for each batch:

    CONTENT ATTEMPT SLOT TIME     time of the monotonic clock, ns
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from rmq import Coordinator, Delivery, Retention, RmqClient, StreamMessage, Topic, TopicType
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
GROUPS = ("a", "b", "c")
SESSION_S = 3.0

HANDLE_S = 0.01
"""Time between a note and the end of its handler: a kill often hits what is handled and not acked."""


@dataclass(frozen=True, slots=True)
class Handled:
    """A line of a ledger."""

    content: int
    attempt: int
    slot: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What came of one group.

    Attributes:
        missing: Messages that nobody handled.
        redelivered: How often a message was handled again.
        uncounted: Of these, how many had no delivery count of their own.
        swapped: Messages that were first handled before an earlier one of their slot.
        expired: Leases that ran out, as the group counted.
        unaccounted: Entries that the group lost track of.
    """

    missing: int
    redelivered: int
    uncounted: int
    swapped: int
    expired: int
    unaccounted: int


@dataclass(frozen=True, slots=True)
class FanOut:
    """What came of a fan-out: each group's result, and how long it took from the first send to the last ack."""

    groups: dict[str, GroupResult]
    seconds: float
    killed: int


def fan_out(
    url: str,
    name: str,
    folder: Path,
    messages: int,
    *,
    consumers: int = 4,
    kills: int = 0,
    lease_s: int = 3,
    zookeeper: tuple[str, str] | None = None,
    limit_s: float = 300.0,
) -> FanOut:
    """Send messages to 3 groups of consumer processes; kill some of these on the way, each replaced by a new one.

    Args:
        url: Redis.
        name: The topic's name.
        folder: Where the ledgers go.
        messages: How many.
        consumers: Processes of a group.
        kills: How many processes to kill, spread over the run.
        lease_s: Lease of the topic, s.
        zookeeper: Its hosts and a chroot, for slots with owners.
        limit_s: Fail after so long.
    """
    choose = random.Random(messages)
    topic = Topic(
        name, TopicType.STREAM, slots=8, lease=timedelta(seconds=lease_s), retention=Retention(max_length=None)
    )
    with RmqClient(url) as client, ExitStack() as stack:
        view = client.stream(topic)  # registers it before a consumer asks for it
        for group in GROUPS:
            view.add_group(group, "all")
        crowd = stack.enter_context(_crowd(url, name, folder, consumers, zookeeper))
        started_s = time.monotonic()
        client.producer(topic).send_many(
            StreamMessage(str(number), slot_basis=f"k{number % 64}") for number in range(messages)
        )

        def acked() -> int:
            return sum(view.group(group).total("acked") for group in GROUPS)

        for number in range(kills):
            wait_until(lambda share=(number + 1) / (kills + 1): acked() >= share * 3 * messages, limit_s)
            crowd.kill_one(choose)
        wait_until(lambda: acked() >= 3 * messages, limit_s)
        seconds = time.monotonic() - started_s
        crowd.stop()
        return FanOut({group: _result(client, topic, group, folder, messages) for group in GROUPS}, seconds, kills)


class _Crowd:
    """All consumer processes."""

    def __init__(self, url: str, name: str, folder: Path, zookeeper: tuple[str, str] | None) -> None:
        self._command = [sys.executable, "-m", "tests.support.fan_out", url, name]
        self._folder = folder
        self._zookeeper = zookeeper or ()
        self._number = 0
        self.processes: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, group: str) -> None:
        self._number += 1
        ledger = str(self._folder / f"{group}-{self._number}")
        command = [*self._command, group, ledger, *self._zookeeper]
        self.processes.append((group, subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)))

    def kill_one(self, choose: random.Random) -> None:
        group, process = self.processes.pop(choose.randrange(len(self.processes)))
        process.kill()
        process.wait()
        self.start(group)

    def stop(self) -> None:
        for _, process in self.processes:
            process.terminate()
        for _, process in self.processes:
            process.wait(60)


@contextmanager
def _crowd(url: str, name: str, folder: Path, consumers: int, zookeeper: tuple[str, str] | None) -> Iterator[_Crowd]:
    crowd = _Crowd(url, name, folder, zookeeper)
    try:
        for group in GROUPS * consumers:
            crowd.start(group)
        yield crowd
    finally:
        for _, process in crowd.processes:
            process.kill()
            process.wait()


def _result(client: RmqClient, topic: Topic, group: str, folder: Path, messages: int) -> GroupResult:
    lines = sorted(_lines(folder, group), key=lambda line: line.time_ns)
    first: dict[int, Handled] = {}
    for line in lines:
        first.setdefault(line.content, line)
    last = dict.fromkeys(range(topic.slots), -1)
    swapped = 0
    for line in first.values():
        swapped += line.content < last[line.slot]
        last[line.slot] = max(last[line.slot], line.content)
    twice = Counter((line.content, line.attempt) for line in lines)
    stats = client.stream(topic).group(group)
    return GroupResult(
        missing=messages - len(first),
        redelivered=len(lines) - len(first),
        uncounted=sum(twice.values()) - len(twice),
        swapped=swapped,
        expired=stats.total("expired"),
        unaccounted=stats.unaccounted,
    )


def _lines(folder: Path, group: str) -> Iterator[Handled]:
    for ledger in folder.glob(f"{group}-*"):
        for line in ledger.read_text().splitlines():
            content, attempt, slot, time_ns = map(int, line.split())
            yield Handled(content, attempt, slot, time_ns)


def consume(url: str, name: str, group: str, ledger: str, zookeeper: tuple[str, str] | None) -> None:
    """Be one of the consumers, until SIGTERM."""
    file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    coordinator = None
    if zookeeper is not None:
        coordinator = Coordinator(zookeeper[0], chroot=zookeeper[1], session_timeout_s=SESSION_S)
    client = RmqClient(url, zookeeper=coordinator)

    @client.listener(client.topic(name), group=group, start="all", batch=200)
    def handle(deliveries: list[Delivery]) -> None:
        now_ns = time.monotonic_ns()
        lines = [
            f"{delivery.text} {delivery.attempt} {delivery.slot} {now_ns + place}\n"
            for place, delivery in enumerate(deliveries)
        ]
        os.write(file, "".join(lines).encode())
        time.sleep(HANDLE_S)

    client.run()


if __name__ == "__main__":
    consume(*sys.argv[1:5], zookeeper=(sys.argv[5], sys.argv[6]) if len(sys.argv) > 5 else None)
