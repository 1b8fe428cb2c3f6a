"""A cluster under test: worker processes that own slots, traffic, faults, and the account of it all in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from rmq import PriorityMessage, RangeMergeMessage, RmqClient, RmqError, Topic, TopicType
from rmq._ownership.values import owner_path, owners_path
from tests.support.core import OWNERS_KEYS, monotonic_s
from tests.support.ledger import Story, read_ledger
from tests.support.waiting import LIMIT_S, wait_until

SESSION_S = 3.0
TICK_MS = 300
LEASE_S = 4
MOST_PRIORITY = 1_000
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Report:
    """What came of a scenario.

    Attributes:
        name: The scenario.
        sent: Messages that Redis accepted.
        lost: Those that nobody handled to the end.
        duplicates: Handlings beyond the first.
        content_overlaps: Two handlings of one content at once: without an excuse, and in a pause longer than the lease.
        slot_overlaps: The same of one slot.
        stale_starts: Handlings that began after one of a newer epoch in their slot.
        late: Handlings that ended after a pause much longer than the session: refused, and accepted.
        unaccounted: Messages missing in Redis' own accounts.
        owned_again_s: How long slots were without a live owner.
        notes: What else was measured.
    """

    name: str
    sent: int = 0
    lost: int = 0
    duplicates: int = 0
    content_overlaps: tuple[int, int] = (0, 0)
    slot_overlaps: tuple[int, int] = (0, 0)
    stale_starts: int = 0
    late: tuple[int, int] = (0, 0)
    unaccounted: int = 0
    owned_again_s: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def check(self) -> None:
        """Check that nothing was lost, nothing ran twice at once, nothing late was accepted."""
        told = self.to_json()
        print(told)
        assert self.sent > 0, told
        assert (self.lost, self.unaccounted, self.stale_starts) == (0, 0, 0), told
        assert (self.content_overlaps, self.slot_overlaps) == ((0, 0), (0, 0)), told
        assert self.late[1] == 0, told


class WorkerProcess:
    """One worker process of a rig."""

    def __init__(self, name: str, options: dict[str, Any], log: Path) -> None:
        self.name = name
        self.log = log
        self.killed_s: float | None = None
        self._cut = log.with_suffix(".cut")
        options = {**options, "name": name, "log": str(log), "cut": str(self._cut)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.owned_worker", json.dumps(options)],
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL; what it was at ends now."""
        self.process.kill()
        self.process.wait()
        self.killed_s = monotonic_s()

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def cut_from_redis(self) -> None:
        """Break its connections to Redis and refuse new ones, until `mend`."""
        self._cut.touch()

    def mend(self) -> None:
        self._cut.unlink(missing_ok=True)

    @property
    def running(self) -> bool:
        return self.process.poll() is None


class Traffic(threading.Thread):
    """Sends messages that are all different, again and again until Redis has accepted each.

    Attributes:
        accepted: (topic, content) of all accepted ones.
        troubles: What went wrong on the way.
    """

    def __init__(self, client: RmqClient, topics: Sequence[Topic], per_second: float, wait_ms: int) -> None:
        super().__init__(name="traffic", daemon=True)
        self._wait_ms = wait_ms
        self.accepted: set[tuple[str, str]] = set()
        self.troubles: Counter[str] = Counter()
        self._producers = [client.producer(topic) for topic in topics]
        self._pause_s = 0.05
        self._batch = max(1, int(per_second * self._pause_s / len(topics)))
        self._ended = threading.Event()
        self._number = 0

    def run(self) -> None:
        while not self._ended.wait(self._pause_s):
            for producer in self._producers:
                contents = [f"m{self._number + each}" for each in range(self._batch)]
                self._number += len(contents)
                self._send(producer, contents)

    def _send(self, producer: Any, contents: list[str]) -> None:
        topic = producer.topic
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            try:
                producer.send_many(message(topic, content, self._wait_ms) for content in contents)
            except RmqError as error:
                self.troubles[type(error).__name__] += 1
                time.sleep(0.1)
            else:
                self.accepted.update((topic.name, content) for content in contents)
                return

    def stop(self) -> None:
        self._ended.set()
        self.join()


def message(topic: Topic, content: str, wait_ms: int) -> RangeMergeMessage | PriorityMessage:
    if topic.type is TopicType.PRIORITY:
        return PriorityMessage(content, random.randint(20, MOST_PRIORITY))
    return RangeMergeMessage(content, time_range_ms=wait_ms)


class Rig:
    """Workers, traffic and topics on given servers. Use it as a context manager.

    Args:
        url: Where Redis is.
        hosts: Where ZooKeeper is; empty for owners in Redis.
        folder: For the ledger and the logs.
        topics: Two topics of 64 slots are usual.
        threads: Of each listener in a worker.
        handle_ms: How long a handler takes, from and to.
        session_s: ZooKeeper's session timeout.
        durability: Of the traffic.
    """

    def __init__(
        self,
        url: str,
        hosts: str,
        folder: Path,
        topics: Sequence[Topic],
        *,
        threads: int = 2,
        handle_ms: tuple[float, float] = (10, 100),
        session_s: float = SESSION_S,
        durability: str = "memory",
        stop_s: float = 10.0,
    ) -> None:
        self.hosts = hosts
        self.session_s = session_s
        self.topics = list(topics)
        self.slots = [(topic.name, slot) for topic in topics for slot in range(topic.slots)]
        self.client = RmqClient(url, durability=durability, timeout_s=2.0, deadline_s=5.0)
        for topic in topics:
            self.client.producer(topic)
        self.ledger = folder / "ledger"
        self.ledger.write_text("")
        self.workers: dict[str, WorkerProcess] = {}
        self.chroot = f"/rig-{os.getpid()}-{random.randrange(10**9)}"
        self._folder = folder
        self._options = {
            "url": url,
            "hosts": hosts,
            "ledger": str(self.ledger),
            "topics": [topic.name for topic in topics],
            "threads": threads,
            "handle_ms": handle_ms,
            "session_s": session_s,
            "stop_s": stop_s,
            "chroot": self.chroot,
        }
        self._kazoo: Any = KazooClient(hosts=hosts + self.chroot, timeout=10.0) if hosts else None

    def __enter__(self) -> Rig:
        if self._kazoo:
            self._kazoo.start(60)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            if worker.running:
                worker.resume()
                worker.process.kill()
            worker.process.wait()
        self.client.close()
        if self._kazoo:
            self._kazoo.stop()
            self._kazoo.close()

    def start(self, *names: str, **options: Any) -> None:
        """Start workers; options replace those of the rig."""
        for name in names:
            log = self._folder / f"{name}.log"
            self.workers[name] = WorkerProcess(name, {**self._options, **options}, log)

    # --- who owns what

    def owners(self) -> dict[tuple[str, int], str]:
        """Return (topic, slot) -> worker, as ZooKeeper or Redis has it; what can't be read is left out."""
        if self._kazoo is None:
            return {key: owner for key, (owner, _) in self.in_redis().items()}
        owners: dict[tuple[str, int], str] = {}
        try:
            for topic in self.topics:
                listed = self._kazoo.get_children_async(owners_path(topic.name)).get(timeout=2)
                asked = {int(slot): self._kazoo.get_async(owner_path((topic.name, int(slot)))) for slot in listed}
                for slot, result in asked.items():
                    try:
                        owners[topic.name, slot] = result.get(timeout=2)[0].decode()
                    except KazooException:
                        continue
        except (KazooException, KazooTimeoutError):
            pass
        return owners

    def in_redis(self) -> dict[tuple[str, int], tuple[str, tuple[int, int]]]:
        """Return (topic, slot) -> worker, and the epoch and session of its owner node, for owners in Redis."""
        try:
            flat: Any = self.client._connections.command("HGETALL", OWNERS_KEYS["nodes"])  # pyright: ignore[reportPrivateUsage]
        except RmqError:
            return {}
        found: dict[tuple[str, int], tuple[str, tuple[int, int]]] = {}
        for path, node in zip(flat[::2], flat[1::2], strict=True):
            _, *place = path.decode().split("/")
            epoch, _, _, session, owner = node.split(b" ", 4)
            if place[0] == "owners" and len(place) == 3:
                found[place[1], int(place[2])] = owner.decode(), (int(epoch), int(session))
        return found

    def wait_owned(self, *names: str, timeout_s: float = LIMIT_S, even: bool = True) -> float:
        """Wait until the named workers, by default all, own all slots, as evenly as stated; return how long it took."""
        wanted = set(names or self.workers)
        started_s = time.monotonic()

        def owned() -> bool:
            owners = self.owners()
            if len(owners) < len(self.slots) or not set(owners.values()) <= wanted:
                return False
            return not even or self.unevenness(owners, wanted) <= 1

        wait_until(owned, timeout_s, f"all slots to be owned by {sorted(wanted)}")
        return time.monotonic() - started_s

    def wait_can_claim(self, timeout_s: float) -> None:
        """Wait until the live workers say that together they own all slots: an owner node alone claims nothing."""

        def claims() -> bool:
            owns = {pid: number for _, pid, number in self._told("owns")}
            return sum(owns.get(each.pid, 0) for each in self.workers.values() if each.running) == len(self.slots)

        wait_until(claims, timeout_s, "all slots to be claimed from")

    def _told(self, kind: str) -> list[tuple[float, int, int]]:
        """Return time, process and number of the lines of a kind."""
        lines = [line.split() for line in self.ledger.read_text().splitlines() if line.startswith(f"{kind} ")]
        return [(float(at_s), int(pid), int(number)) for _, at_s, pid, number in lines]

    def first_owned_s(self) -> float:
        """Return how long it took from the last worker's readiness until all slots were claimed from the first time."""
        ready_s = max(at_s for at_s, _, _ in self._told("ready"))
        owns: dict[int, int] = {}
        for at_s, pid, number in self._told("owns"):
            owns[pid] = number
            if at_s > ready_s and sum(owns.values()) == len(self.slots):
                return round(at_s - ready_s, 2)
        raise AssertionError("not all slots were owned")

    def wait_caught_up(self, timeout_s: float) -> None:
        """Wait until what is due now is handled about as fast as it comes."""
        wait_until(lambda: sum(each.due_now for each in self.stats()) < 50, timeout_s, "the backlog to be worked off")

    def shares(self) -> dict[str, dict[str, int]]:
        """Return topic -> worker -> number of slots."""
        shares: dict[str, dict[str, int]] = {topic.name: {} for topic in self.topics}
        for (topic, _), owner in sorted(self.owners().items()):
            shares[topic][owner] = shares[topic].get(owner, 0) + 1
        return shares

    def unevenness(self, owners: dict[tuple[str, int], str], workers: set[str]) -> int:
        """Return the largest difference, over the topics, between the most and the fewest slots of a worker."""
        worst = 0
        for topic in self.topics:
            counts = Counter(owner for (name, _), owner in owners.items() if name == topic.name)
            shares = [counts[worker] for worker in workers]
            worst = max(worst, max(shares) - min(shares))
        return worst

    # --- traffic and its account

    @contextmanager
    def traffic(self, per_second: float = 150, wait_ms: int = 1) -> Iterator[Traffic]:
        """Send all the while; messages of a RANGE_MERGE topic wait so long in the backlog."""
        traffic = Traffic(self.client, self.topics, per_second, wait_ms)
        traffic.start()
        try:
            yield traffic
        finally:
            traffic.stop()

    def story(self) -> Story:
        killed = {worker.pid: worker.killed_s for worker in self.workers.values() if worker.killed_s is not None}
        return read_ledger(self.ledger, killed)

    def stats(self) -> list[Any]:
        return [self.client.inspect(topic).stats() for topic in self.topics]

    def account(
        self, name: str, traffic: Traffic, *, timeout_s: float = 40.0, lease_s: float = LEASE_S, **notes: Any
    ) -> Report:
        """Wait until all is handled, stop the workers, and draw up the account."""

        def empty() -> bool:
            return all(each.backlog + each.in_flight + each.waiting == 0 for each in self.stats())

        started_s = time.monotonic()
        wait_until(empty, timeout_s, "all messages to be handled")
        notes["drained_s"] = round(time.monotonic() - started_s, 2)
        codes = {worker.name: worker.stop() for worker in self.workers.values() if worker.running}
        assert not any(codes.values()), codes
        story = self.story()
        late = story.late(self.session_s * 1.2)
        lost = traffic.accepted - story.handled
        report = Report(
            name,
            sent=len(traffic.accepted),
            lost=len(lost),
            duplicates=story.duplicates,
            content_overlaps=_split(story.content_overlaps(), lease_s),
            slot_overlaps=_split(story.slot_overlaps(), lease_s),
            stale_starts=len(story.epochs_fall()),
            late=(sum(refused for _, refused in late), sum(not refused for _, refused in late)),
            unaccounted=sum(each.unaccounted for each in self.stats()),
            notes={**notes, "troubles": dict(traffic.troubles), "dead": sum(each.dead for each in self.stats())},
        )
        for overlap in (*story.content_overlaps(), *story.slot_overlaps()):
            if overlap.paused_s <= lease_s:
                print("overlap:", overlap)
        for topic, content in sorted(lost)[:5]:
            print("lost:", topic, content)
        return report


def _split(overlaps: Sequence[Any], lease_s: float) -> tuple[int, int]:
    excused = sum(overlap.paused_s > lease_s for overlap in overlaps)
    return len(overlaps) - excused, excused
