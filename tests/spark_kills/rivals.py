"""Two queries, a listener and a batch reader on one topic, under faults: nothing is lost, and nothing overlaps.

    python -m tests.spark_kills.rivals --minutes 5 --seed 1

All four take part in one PRIORITY topic whose few contents are sent again and again. Every few seconds Redis restarts
with its AOF, loses its scripts or all of its connections, or a process is paused for longer than its leases or killed.
A query that was killed goes on from its checkpoint. The exit code is 1 if a send is lost, if two had one content at
once without a pause, a kill or a restart that explains it, or if the accounts are wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from rmq import PriorityMessage, RmqClient
from tests.histories.journal import FOREVER_S, Journal, now_s, start_process
from tests.histories.judge import UNOWNED, Rules, judge, summary
from tests.histories.servers import DURABLE
from tests.histories.story import read
from tests.spark_kills.rival_programs import LEASE_S, TOPIC
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = ("query", "query", "listener", "reader")
CONTENTS = 5_000
SIZE = 50
"""Messages of a send."""

DRAIN_S = 300.0
START_S = 300.0


def main() -> int:
    """Run the rivals, and judge them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults happen")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn by lot")
    parser.add_argument("--per-second", type=float, default=200.0, help="messages sent")
    parser.add_argument("--folder", type=Path, help="keep the journal and the checkpoints here")
    options = parser.parse_args()
    with ExitStack() as stack:
        root = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmq-rivals-")))
        root.mkdir(exist_ok=True, parents=True)
        server = stack.enter_context(RedisServer(DURABLE))
        rivals = Rivals(server, root, random.Random(options.seed))
        stack.callback(rivals.kill_all)
        sending = threading.Thread(target=rivals.send, args=(options.per_second,))
        sending.start()
        try:
            rivals.suffer(60 * options.minutes)
        finally:
            rivals.stopping.set()
            sending.join()
        left = rivals.drain()
        rivals.kill_all()
        with RmqClient(server.url) as client:
            dead = {(TOPIC.name, each.text) for each in client.dead(TOPIC).list(limit=100_000)}
        verdict = judge(read(root / "journal"), Rules(LEASE_S, folding=(TOPIC.name,), dead=dead), UNOWNED)
        by_kind = ", ".join(f"{name} {number}" for name, number in sorted(rivals.handled().items()))
    for violation in verdict.violations[:40]:
        print(f"  {violation}")
    for text in left:
        print(f"  left: {text}")
    print(
        f"  handled by {by_kind}; faults: {json.dumps(rivals.counts)}; "
        f"{verdict.overlaps.total()} overlaps explained by faults"
    )
    print(
        f"{verdict.accepted:,} sends, {verdict.runs:,} handlings, {sum(rivals.counts.values())} faults; "
        f"{summary(verdict, UNOWNED)}, wrong accounts {len(left)}"
    )
    return 1 if verdict.violations or left else 0


class Rivals:
    """The four processes, who sends to them, and what happens to them.

    Args:
        server: Redis.
        folder: For the journal, checkpoints and what processes print.
        chance: Decides.

    Attributes:
        counts: How often each fault happened.
        stopping: Ends the sender.
    """

    def __init__(self, server: RedisServer, folder: Path, chance: random.Random) -> None:
        self._server, self._folder, self._chance = server, folder, chance
        self._journal = Journal(folder / "journal")
        self._journal.clock()
        self.stopping = threading.Event()
        self.counts: Counter[str] = Counter()
        self._names: dict[int, str] = {}
        with RmqClient(server.url) as client:
            client.producer(TOPIC)
        for slot in range(TOPIC.slots):
            self._journal.write("shard", 0.0, TOPIC.name, slot, 0)
        self._began_s = now_s()
        self._processes = [self._start(place) for place in range(len(PROGRAMS))]

    def send(self, per_second: float) -> None:
        """Send until `stopping`: few contents, so that most meet one in the backlog or in somebody's hands."""
        chance, number = random.Random(self._chance.random()), 0
        with RmqClient(self._server.url, deadline_s=60) as client:
            producer = client.producer(TOPIC)
            while not self.stopping.wait(SIZE / per_second):
                contents = chance.sample(range(CONTENTS), SIZE)
                ids = {f"c{each}": str(number + place) for place, each in enumerate(contents)}
                number += SIZE
                batch = [
                    PriorityMessage(content, chance.randint(100, 1_000), body=each) for content, each in ids.items()
                ]
                self._journal.send(TOPIC.name, list(ids.items()), partial(producer.send_many, batch), _id)

    def suffer(self, seconds: float) -> None:
        """Let faults happen for so long."""
        faults: list[Callable[[], str]] = [
            self.flush_scripts, self.cut_connections, self.restart_server, self.pause, self.kill_query, self.kill_other,
        ]  # fmt: skip
        wait_until(self._has_begun, START_S)
        self._note("both queries are at work")
        until_s = now_s() + seconds
        while now_s() < until_s:
            time.sleep(self._chance.uniform(3, 8))
            self._revive()
            fault = self._chance.choice(faults)
            self.counts[fault.__name__] += 1
            self._note(fault())

    def flush_scripts(self) -> str:
        """Let Redis forget all scripts, several times."""
        with self._server.connect() as client:
            for _ in range(20):
                client.execute_command("SCRIPT", "FLUSH")
                time.sleep(0.02)
        return "scripts flushed"

    def cut_connections(self) -> str:
        """Cut all connections."""
        with self._server.connect() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        return "connections cut"

    def restart_server(self) -> str:
        """Kill Redis and start it again with its AOF."""
        from_s = now_s()
        self._server.kill()
        time.sleep(self._chance.uniform(0, 1.5))
        self._server.start()
        self._journal.trouble("server killed", "shard 0", from_s)
        return "Redis was killed and restarted"

    def pause(self) -> str:
        """Pause a process, and all that it has started, for longer than its leases."""
        process = self._chance.choice(
            [each for place, each in enumerate(self._processes) if self._are_at_work((place,))]
        )
        length_s, from_s = LEASE_S * self._chance.uniform(1.2, 1.6), now_s()
        self._signal(process, signal.SIGSTOP)
        time.sleep(length_s)
        self._signal(process, signal.SIGCONT)
        self._journal.trouble("process paused", f"pid {process.pid}", from_s)
        return f"{self._names[process.pid]} was paused for {length_s:.1f} s"

    def kill_query(self) -> str:
        """Kill a query's driver with its JVM, and start it again; or wait, where both are about to start."""
        places = [place for place in (0, 1) if self._are_at_work((place,))]
        return self._kill(self._chance.choice(places)) if places else "both queries start"

    def kill_other(self) -> str:
        """Kill the listener or the reader, and start it again."""
        return self._kill(self._chance.choice((2, 3)))

    def drain(self) -> list[str]:
        """Wait until all is handled; return what is left or not accounted for."""
        self._note("draining")
        until_s = now_s() + DRAIN_S
        with RmqClient(self._server.url) as client:
            while True:
                self._revive()
                stats = client.inspect(TOPIC).stats()
                left = {"backlog": stats.backlog, "in flight": stats.in_flight, "waiting": stats.waiting}
                if not any(left.values()) or now_s() > until_s:
                    break
                time.sleep(0.5)
        time.sleep(1)  # who has acked its last message says so in the journal before
        return [f"{name} {number}" for name, number in (left | {"unaccounted": stats.unaccounted}).items() if number]

    def handled(self) -> Counter[str]:
        """Return how many messages each kind of process has handled."""
        return Counter(self._names[run.pid].split()[0] for run in read(self._folder / "journal").runs)

    def kill_all(self) -> None:
        """Kill what still runs."""
        for process in self._processes:
            self._signal(process, signal.SIGKILL)
            process.wait()

    def _has_begun(self) -> bool:
        time.sleep(1)
        self._revive()
        return self._are_at_work((0, 1))

    def _are_at_work(self, places: Sequence[int]) -> bool:
        """Return whether these processes have all handled messages."""
        handled = {run.pid for run in read(self._folder / "journal").runs}
        return all(self._processes[place].pid in handled for place in places)

    def _kill(self, place: int) -> str:
        process = self._processes[place]
        self._signal(process, signal.SIGKILL)
        process.wait()
        self._journal.trouble("process killed", f"pid {process.pid}", now_s(), FOREVER_S)
        self._processes[place] = self._start(place)
        return f"{self._names[process.pid]} was killed"

    def _revive(self) -> None:
        """Start again what has ended by itself, as a query does that could not read its batch."""
        for place, process in enumerate(self._processes):
            if (code := process.poll()) is not None:
                said = (self._folder / f"said-{process.pid}").read_text("utf-8", "replace")
                errors = [line for line in said.splitlines() if "Error" in line]
                self._note(f"{self._names[process.pid]} ended with code {code}: {(errors or ['no error'])[-1][:300]}")
                self.counts["ended_by_itself"] += 1
                self._journal.trouble("process killed", f"pid {process.pid}", now_s(), FOREVER_S)
                self._processes[place] = self._start(place)

    def _start(self, place: int) -> subprocess.Popen[bytes]:
        seed = self._chance.randrange(2**31)
        arguments = (PROGRAMS[place], self._server.url, self._folder / "journal", self._folder / f"query-{place}", seed)
        command = [sys.executable, "-m", "tests.spark_kills.rival_programs", *map(str, arguments)]
        passed = self._folder / f"said-new-{place}"
        with passed.open("wb") as said:
            process = start_process(command, cwd=REPOSITORY, stdout=said, stderr=said, start_new_session=True)
        passed.rename(self._folder / f"said-{process.pid}")
        self._names[process.pid] = f"{PROGRAMS[place]} {place} (pid {process.pid})"
        return process

    def _signal(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """Send a signal to a process and to all that it has started: they are of one session."""
        for name in os.listdir("/proc"):
            with suppress(OSError):
                if name.isdigit() and os.getsid(int(name)) == process.pid:
                    os.kill(int(name), number)

    def _note(self, text: str) -> None:
        print(f"{now_s() - self._began_s:6.1f} s  {text}", file=sys.stderr, flush=True)


def _id(sent: PriorityMessage) -> str:
    return str(sent.body)


if __name__ == "__main__":
    sys.exit(main())
