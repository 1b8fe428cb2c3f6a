"""The faults of a history: each one takes its time, and is written down if it stops something from running."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.histories.journal import FOREVER_S, Journal, now_s, start_process
from tests.histories.servers import Servers, each_node
from tests.histories.topics import LEASE_S
from tests.histories.worker import SIDES

ROOT = Path(__file__).resolve().parents[2]


def start(module: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a process of the history; its messages go to our standard error."""
    command = [sys.executable, "-m", f"tests.histories.{module}", *map(str, arguments)]
    return start_process(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


class Faults:
    """Does things to servers and workers.

    Args:
        servers: The servers.
        journal: Where troubles are written down.
        path: The journal's file, for new workers.
        chance: Decides what happens.
        freeze_s: The longest time for which a server is frozen.
    """

    def __init__(self, servers: Servers, journal: Journal, path: Path, chance: random.Random, freeze_s: float) -> None:
        self._servers = servers
        self._journal = journal
        self._path = path
        self._chance = chance
        self._freeze_s = freeze_s
        self.counts: dict[str, int] = {}
        self.workers = [self._worker(side) for side in SIDES]

    def happen(self) -> str:
        """Let one fault happen; return what it was."""
        faults: list[Callable[[], str]] = [
            self.flush_scripts, self.cut_connections, self.freeze_server, self.kill_server, self.kill_worker,
            self.pause_worker, self.move_slot, self.move_slot,
        ]  # fmt: skip
        fault = self._chance.choice(faults)
        self.counts[fault.__name__] = self.counts.get(fault.__name__, 0) + 1
        return fault()

    def flush_scripts(self) -> str:
        """Let the servers forget all scripts, several times."""
        for _ in range(20):
            each_node(self._servers, "SCRIPT", "FLUSH")
            time.sleep(0.02)
        return "scripts flushed"

    def cut_connections(self) -> str:
        """Cut all connections."""
        each_node(self._servers, "CLIENT", "KILL", "TYPE", "normal")
        return "connections cut"

    def freeze_server(self) -> str:
        """Freeze a server: it takes connections and bytes, and answers nothing."""
        number = self._chance.randrange(len(self._servers.servers))
        length_s = self._chance.choice((0.3, 1.5, 4.0, 0.5 * self._freeze_s, self._freeze_s))
        server, from_s = self._servers.servers[number], now_s()
        server.pause()
        time.sleep(length_s)
        server.resume()
        self._journal.trouble("server frozen", f"shard {number}", from_s)
        return f"server {number} was frozen for {length_s} s"

    def kill_server(self) -> str:
        """Kill a server with SIGKILL and start it again."""
        number = self._chance.randrange(len(self._servers.servers))
        server, from_s = self._servers.servers[number], now_s()
        server.kill()
        time.sleep(self._chance.uniform(0, 1))
        server.start()
        self._journal.trouble("server killed", f"shard {number}", from_s)
        return f"server {number} was killed and restarted"

    def kill_worker(self) -> str:
        """Kill a worker with SIGKILL and start another one."""
        index = self._chance.randrange(len(self.workers))
        worker = self.workers[index]
        worker.kill()
        worker.wait()
        self._journal.trouble("worker killed", f"pid {worker.pid}", now_s(), FOREVER_S)
        self.workers[index] = self._worker(SIDES[index % len(SIDES)])
        return f"worker {worker.pid} ({SIDES[index % len(SIDES)]}) was killed"

    def pause_worker(self) -> str:
        """Freeze a worker, also for longer than its leases."""
        worker = self._chance.choice(self.workers)
        length_s = self._chance.choice((0.5, LEASE_S * 0.5, LEASE_S * 2.0))
        from_s = now_s()
        worker.send_signal(signal.SIGSTOP)
        time.sleep(length_s)
        worker.send_signal(signal.SIGCONT)
        self._journal.trouble("worker paused", f"pid {worker.pid}", from_s)
        return f"worker {worker.pid} was paused for {length_s} s"

    def move_slot(self) -> str:
        """Move a slot to another node."""
        return self._servers.move(self._chance)

    def end_workers(self) -> list[int]:
        """Stop all workers as an orchestrator does; return their exit codes."""
        for worker in self.workers:
            worker.terminate()
        return [worker.wait(60) for worker in self.workers]

    def kill_all(self) -> None:
        """Kill what still runs."""
        for worker in self.workers:
            worker.kill()
            worker.wait()

    def _worker(self, side: str) -> subprocess.Popen[bytes]:
        return start("worker", self._servers.url, self._path, self._chance.randrange(2**31), side)
