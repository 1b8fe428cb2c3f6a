"""The faults of workers, producers and ZooKeeper: each begins with all slots owned, and ends with all owned again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from tests.campaign.crew import Place
from tests.campaign.stage import Stage
from tests.campaign.topics import LEASE_S
from tests.histories.journal import now_s
from tests.support.link import Link
from tests.support.zookeeper import Server

LEADERLESS = "zookeeper without a leader"
JUMPS_S = (-86_400.0, -600.0, -15.0, 15.0, 3_600.0, 86_400.0)
SENDER_JUMPS_S = (-86_400.0, -600.0, -3.0, 15.0)
"""A producer whose clock is far ahead asks for fixed times that nobody can wait for."""


class OtherFaults:
    """Does things to the processes of a stage.

    Args:
        stage: The stage.
        before: The release before, unpacked; None where there is none.
        brief: Keep every fault short.
    """

    def __init__(self, stage: Stage, before: Path | None, brief: bool) -> None:
        self._stage = stage
        self._crew = stage.crew
        self._before = before
        self._brief = brief
        self.by_kind: dict[str, Callable[[random.Random], str]] = {
            "worker killed": self.kill_worker,
            "worker paused": self.pause_worker,
            "worker cut off": self.cut_worker,
            "worker link slow": self.slow_worker,
            "producer killed": self.kill_producer,
            "producer paused": self.pause_producer,
            "zookeeper killed": self.kill_zookeeper,
            "zookeeper frozen": self.freeze_zookeeper,
            "zookeeper quorum lost": self.lose_quorum,
            "clock jumps": self.jump_clock,
            "worker rolling restart": self.restart_workers,
            "zookeeper rolling restart": self.restart_zookeeper,
            "release before": self.run_release_before,
        }

    def settle(self) -> None:
        """Wait until the next fault may begin."""
        if self._stage.zookeeper.servers:
            self._stage.wait_led()
        self._stage.wait_owned()

    def kill_worker(self, chance: random.Random) -> str:
        """Kill a worker with SIGKILL, and start another one in its place."""
        place = chance.choice(self._crew.workers)
        self._crew.kill(place)
        time.sleep(chance.uniform(0, 2))
        self._crew.start(place)
        return f"{place.name} was killed"

    def pause_worker(self, chance: random.Random) -> str:
        """Stop a worker with SIGSTOP: for a moment, or for longer than its leases and its session."""
        place = chance.choice(self._crew.workers)
        return self._pause(place, chance.choice((1.0,) if self._brief else (1.0, LEASE_S * 1.5, LEASE_S * 2.5)))

    def cut_worker(self, chance: random.Random) -> str:
        """Cut the first worker from Redis, from ZooKeeper if there is one, or from both."""
        place = self._crew.workers[0]
        what = chance.choice(
            ("Redis", "ZooKeeper", "Redis and ZooKeeper") if self._stage.zookeeper.servers else ("Redis",)
        )
        length_s = chance.choice((1.0,) if self._brief else (1.0, LEASE_S * 1.5))
        links = self._links(what)
        from_s = now_s()
        for link in links:
            link.cut()
        time.sleep(length_s)
        for link in links:
            link.mend()
        self._trouble("worker cut off", place, from_s)
        return f"the links of worker 0 and producer 0 to {what} were cut for {length_s:.1f} s"

    def slow_worker(self, chance: random.Random) -> str:
        """Let all that the first worker and the first producer send and get be late."""
        place = self._crew.workers[0]
        late_s = chance.uniform(0.02, 0.2)
        length_s = 1.0 if self._brief else chance.uniform(3, LEASE_S)
        links = self._links("Redis and ZooKeeper")
        from_s = now_s()
        for link in links:
            link.slow(late_s)
        time.sleep(length_s)
        for link in links:
            link.slow(0)
        self._trouble("worker link slow", place, from_s)
        return f"the links of worker 0 and producer 0 were {1000 * late_s:.0f} ms slow for {length_s:.1f} s"

    def kill_producer(self, chance: random.Random) -> str:
        """Kill a producer with SIGKILL, and start another one in its place."""
        place = chance.choice(self._crew.senders)
        self._crew.kill(place)
        self._crew.start(place)
        return f"{place.name} was killed"

    def pause_producer(self, chance: random.Random) -> str:
        """Stop a producer with SIGSTOP."""
        place = chance.choice(self._crew.senders)
        return self._pause(place, chance.choice((0.5, 1.0) if self._brief else (0.5, 3.0, LEASE_S * 1.5)))

    def kill_zookeeper(self, chance: random.Random) -> str:
        """Kill a server of ZooKeeper, and start it again."""
        server = chance.choice(self._stage.zookeeper.servers)
        led = server is self._stage.wait_led()
        from_s = now_s()
        server.kill()
        time.sleep(chance.uniform(0, 2))
        self._stage.wait_led()
        self._zookeeper(LEADERLESS if led else "zookeeper server killed", from_s)
        self._revive([server])
        return f"the {'leader' if led else 'follower'} was killed"

    def freeze_zookeeper(self, chance: random.Random) -> str:
        """Stop a server of ZooKeeper with SIGSTOP."""
        server = chance.choice(self._stage.zookeeper.servers)
        led = server is self._stage.wait_led()
        length_s = 1.0 if self._brief else chance.uniform(1, 8)
        from_s = now_s()
        server.pause()
        time.sleep(length_s)
        server.resume()
        self._stage.wait_led()
        self._zookeeper(LEADERLESS if led else "zookeeper server frozen", from_s)
        return f"the {'leader' if led else 'follower'} was frozen for {length_s:.1f} s"

    def lose_quorum(self, chance: random.Random) -> str:
        """Kill two of three servers, so that nobody leads."""
        victims = chance.sample(self._stage.zookeeper.servers, 2)
        from_s = now_s()
        for server in victims:
            server.kill()
        time.sleep(chance.uniform(1, 2 if self._brief else 8))
        self._revive(victims)
        self._stage.wait_led()
        self._zookeeper(LEADERLESS, from_s)
        return f"nobody led for {now_s() - from_s:.1f} s"

    def jump_clock(self, chance: random.Random) -> str:
        """Let the wall clock of a worker or a producer jump, and jump back."""
        place = chance.choice((self._crew.workers[1], self._crew.senders[1]))
        assert place.clock is not None
        jump_s = chance.choice(JUMPS_S if place.module == "worker" else SENDER_JUMPS_S)
        place.clock.jump(jump_s)
        time.sleep(2.0 if self._brief else chance.uniform(3, 6))
        place.clock.jump(0)
        return f"the clock of {place.name} jumped by {jump_s:+.0f} s, and back"

    def restart_workers(self, chance: random.Random) -> str:
        """Restart one worker after the other with SIGTERM."""
        workers = self._crew.workers[: 1 if self._brief else None]
        for place in chance.sample(workers, len(workers)):
            self._crew.end([place])
            self._crew.start(place)
            self._stage.wait_owned()
        return f"{len(workers)} workers were restarted, one after the other"

    def restart_zookeeper(self, chance: random.Random) -> str:
        """Restart one server of ZooKeeper after the other with SIGTERM."""
        servers = self._stage.zookeeper.servers
        for server in chance.sample(servers, len(servers)):
            led = server is self._stage.wait_led()
            from_s = now_s()
            server.stop()
            self._stage.wait_led()
            self._zookeeper(LEADERLESS if led else "zookeeper server restarted", from_s)
            self._revive([server])
        return "all servers were restarted, one after the other"

    def run_release_before(self, chance: random.Random) -> str:
        """Let a worker of the release before take a place for a while."""
        assert self._before is not None
        place = self._crew.workers[chance.randrange(2, len(self._crew.workers))]
        self._crew.end([place])
        self._crew.start(place, self._before)
        self._stage.wait_owned()
        time.sleep(3.0 if self._brief else chance.uniform(6, 12))
        self._crew.end([place])
        self._crew.start(place)
        return f"{place.name} was of the release before"

    def _pause(self, place: Place, length_s: float) -> str:
        from_s = now_s()
        self._crew.pause(place)
        time.sleep(length_s)
        self._crew.resume(place)
        self._trouble(f"{place.module} paused", place, from_s)
        return f"{place.name} was paused for {length_s:.1f} s"

    def _links(self, what: str) -> list[Link]:
        redis = self._stage.redis_links() if "Redis" in what else []
        return [*redis, *(self._stage.zookeeper_links() if "ZooKeeper" in what else [])]

    def _revive(self, servers: list[Server]) -> None:
        for server in servers:
            server.start()
        for server in servers:
            server.wait_ready(60.0)

    def _trouble(self, cause: str, place: Place, from_s: float) -> None:
        """Write down a trouble; the first producer shares its links with the first worker."""
        to_s = now_s()
        self._stage.journal.trouble(cause, f"pid {place.pid}", from_s, to_s)
        if "cut" in cause or "slow" in cause:
            sender = self._crew.senders[0]
            self._stage.journal.trouble(cause.replace("worker", "producer"), f"pid {sender.pid}", from_s, to_s)

    def _zookeeper(self, cause: str, from_s: float) -> None:
        self._stage.journal.trouble(cause, "keeper", from_s)
