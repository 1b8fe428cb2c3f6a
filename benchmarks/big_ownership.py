"""Kill the only worker of a big installation, and see whether ZooKeeper lives: `python -m benchmarks.big_ownership`.

When the worker's session ends, ZooKeeper writes one transaction with the paths of all slots that it owned. Beyond
`jute.maxbuffer` (and its extra size) that takes the ensemble down for good, so workers own no more than fits. Two runs
by default: servers as everybody has them, and servers and workers with more room.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.support.children import Child, Line
from rmq import Coordinator
from rmq._ownership.assignment import SESSION_BYTES, SessionBudget
from rmq._ownership.redis_keeper import RedisCoordinator
from rmq._processes.zookeeper import JUTE_MAXBUFFER
from tests.support.zookeeper import ZooKeeperEnsemble

DEFAULT_JUTE_MAXBUFFER = 1_048_575
CHROOT = "/rmq"


@dataclass(frozen=True, slots=True)
class Setting:
    """One run.

    Attributes:
        jute_maxbuffer: Of the servers, in bytes.
        session_bytes: Of the workers.
        topics: How many.
        slots: Of each topic.
        name_length: Characters of a topic's name.
        session_s: Session timeout.
    """

    jute_maxbuffer: int
    session_bytes: int
    topics: int = 4
    slots: int = 16_384
    name_length: int = 13
    session_s: float = 10.0

    @property
    def names(self) -> dict[str, int]:
        """Topic -> its number of slots."""
        return {f"topic-{number}".ljust(self.name_length, "x"): self.slots for number in range(self.topics)}

    @property
    def all_slots(self) -> int:
        """Slots of all topics."""
        return self.topics * self.slots

    @property
    def others(self) -> int:
        """How many workers it takes to own all slots."""
        return SessionBudget(self.session_bytes, "worker-00", CHROOT).workers_needed(self.names)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was seen.

    Attributes:
        owned: Slots of the worker that was killed.
        in_s: Seconds that it took to own them.
        alive: Whether all servers still serve some time after its session has ended.
        owned_again: Slots that the others own in the end.
        again_s: Seconds from the kill until then.
        restarted: Whether all servers serve after a restart of all.
    """

    owned: int
    in_s: float
    alive: bool
    owned_again: int
    again_s: float
    restarted: bool


def take_part(worker: Coordinator | RedisCoordinator, topics: Mapping[str, int]) -> None:
    """Let a worker own slots of topics (name -> number of slots), and hand over at once what it is asked for."""

    def hand_over() -> None:
        for key in worker.revoking():
            worker.drained(*key)

    worker.on_change = hand_over
    worker.start(60)
    for place, slots in topics.items():
        worker.register_topic(place, f'{{"slots":{slots},"version":4,"min_reader":4}}')
        worker.consume(place, slots)


def work(line: Line, hosts: str, name: str, setting: Setting) -> None:
    """Be a worker until killed, and report how many slots it owns."""
    limits: dict[str, Any] = {"session_timeout_s": setting.session_s, "session_bytes": setting.session_bytes}
    worker = Coordinator(hosts, name, chroot=CHROOT, **limits)
    take_part(worker, setting.names)
    while True:
        line.report(len(worker.owned()))
        time.sleep(0.2)


def settled(read: Callable[[], int], goal: int, timeout_s: float, rest_s: float | None = None) -> tuple[int, float]:
    """Wait until `read` gives `goal`, or has not risen for a while; return what it gave and how long that took.

    Args:
        read: Gives the number.
        goal: Where it ends.
        timeout_s: How long it may stay the same.
        rest_s: How long it may do so once it has risen; by default no less.
    """
    started_s = since_s = time.monotonic()
    best = read()
    while best < goal and time.monotonic() - since_s < timeout_s:
        time.sleep(0.1)
        now = read()
        if now > best:
            best, since_s = now, time.monotonic()
            timeout_s = timeout_s if rest_s is None else rest_s
    return best, round(since_s - started_s, 1)


def serving(servers: ZooKeeperEnsemble, timeout_s: float) -> bool:
    """Tell whether every server serves within some time."""
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        if all(server.pid and server.mode for server in servers.servers):
            return True
        time.sleep(0.2)
    return False


def play(setting: Setting, patience_s: float = 60.0, serve_s: float = 30.0, rest_s: float | None = None) -> Outcome:
    """Let one worker own what it may, kill it, let others take over, and restart all servers.

    Args:
        setting: What is played.
        patience_s: A number of slots that has not risen for so long is the last one.
        serve_s: How long the servers have to serve again.
        rest_s: As `patience_s`, for the only worker once it owns some.
    """
    with ExitStack() as stack:
        java = (f"-Djute.maxbuffer={setting.jute_maxbuffer}",)
        servers = stack.enter_context(ZooKeeperEnsemble(servers=3, tick_ms=1000, java_options=java))

        owned: dict[Child, int] = {}

        def start(number: int) -> Child:
            worker = Child(work, servers.hosts, f"worker-{number:02}", setting)
            stack.callback(worker.kill)
            owned[worker] = 0
            return worker

        def in_all() -> int:
            owned.update({worker: news[-1] for worker in owned if (news := worker.news())})
            return sum(owned.values())

        first = start(0)
        alone, in_s = settled(in_all, setting.all_slots, patience_s, rest_s)
        killed_s = time.monotonic()
        first.kill()
        owned.clear()
        time.sleep(setting.session_s * 1.5)  # the session ends; nothing tells when
        alive = serving(servers, serve_s)
        others = [start(number) for number in range(1, setting.others + 1)] if alive else []
        again, _ = settled(in_all, setting.all_slots if alive else 0, patience_s)
        again_s = round(time.monotonic() - killed_s, 1)
        for worker in others:
            worker.kill()
        for server in servers.servers:
            server.restart()
        return Outcome(alone, in_s, alive, again, again_s, serving(servers, serve_s))


def main(argv: Sequence[str] | None = None) -> int:
    """Run; the exit code says whether ZooKeeper lived and all slots were owned again."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.big_ownership", description=__doc__)
    parser.add_argument("--topics", type=int, default=4)
    parser.add_argument("--slots", type=int, default=16_384, help="of each topic")
    parser.add_argument("--name-length", type=int, default=13, help="characters of a topic's name")
    parser.add_argument("--jute-maxbuffer", type=int, help="of the servers; together with --session-bytes one run")
    parser.add_argument("--session-bytes", type=int, help="of the workers; beyond jute.maxbuffer the ensemble dies")
    options = parser.parse_args(argv)
    if options.jute_maxbuffer or options.session_bytes:
        limits = [(options.jute_maxbuffer or DEFAULT_JUTE_MAXBUFFER, options.session_bytes or SESSION_BYTES)]
    else:
        limits = [(DEFAULT_JUTE_MAXBUFFER, SESSION_BYTES), (JUTE_MAXBUFFER, JUTE_MAXBUFFER * 9 // 10)]
    good = True
    for jute_maxbuffer, session_bytes in limits:
        setting = Setting(jute_maxbuffer, session_bytes, options.topics, options.slots, options.name_length)
        print(f"jute.maxbuffer {jute_maxbuffer:,}, session_bytes {session_bytes:,}, {setting.all_slots:,} slots")
        seen = play(setting)
        print(f"  the only worker owned {seen.owned:,} slots after {seen.in_s:g} s and was killed")
        print(f"  all 3 servers serve: {seen.alive}; after a restart of all: {seen.restarted}")
        print(f"  {setting.others} others own {seen.owned_again:,} slots {seen.again_s:g} s after the kill", flush=True)
        good = good and seen.alive and seen.restarted and seen.owned_again == setting.all_slots
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
