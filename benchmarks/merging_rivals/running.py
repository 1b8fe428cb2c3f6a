"""Runs a work with one system: a Redis of its own, a sender, a worker; lines of the ledger trigger later sends."""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import redis

from benchmarks.merging_rivals import work as works
from benchmarks.merging_rivals.judging import Sent, judge
from benchmarks.merging_rivals.programs.rival import Case
from benchmarks.merging_rivals.systems import System
from benchmarks.merging_rivals.work import Send, Work
from benchmarks.support.environments import end_group, last_line
from benchmarks.support.servers import standalone

PROBE = "probe"
"""A key that shows that sender and worker are ready; it is not judged."""
PROBE_LIMIT_S = 90.0
SETTLED_S = 5.0
"""A work is over when nothing is left and nothing has happened for so long."""
STUCK_S = 60.0
"""Or when nothing has happened for so long, whatever is left; after a kill it is the system's own time."""
LIMIT_S = 420.0
STEP_S = 0.005


class Process:
    """A rival's program, in a process group of its own, its errors in a file."""

    def __init__(self, system: System, case: Case, verb: str, place: Path) -> None:
        self._errors = place / f"{verb}.errors"
        pipe = subprocess.PIPE if verb == "send" else subprocess.DEVNULL
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [*system.environment.command(), verb],
                env={**system.environment.variables(), "RIVAL": json.dumps(asdict(case))},
                stdin=pipe,
                stdout=pipe,
                stderr=errors,
                text=True,
                start_new_session=True,
                cwd=place,
            )

    def say(self, line: str) -> None:
        """Write a line to it."""
        assert self._process.stdin
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def lines(self) -> Iterator[str]:
        """Yield what it prints, until it ends."""
        assert self._process.stdout
        return iter(self._process.stdout.readline, "")

    def kill(self) -> None:
        """Kill all of it at once, as `kill -9` does."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def alive(self) -> bool:
        """Return whether it runs."""
        return self._process.poll() is None

    def problem(self) -> str:
        """Return its last word."""
        return last_line(self._errors.read_text("utf-8", "replace"))

    def end(self) -> None:
        """End all of it."""
        end_group(self._process)


class Ledger:
    """The file that handlers append to, read as it grows."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self.lines: list[dict[str, Any]] = []
        self.open: set[str] = set()
        self._file = path.open("rb")
        self._rest = b""

    def news(self) -> list[dict[str, Any]]:
        """Return the lines that have come since."""
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        found = [json.loads(line) for line in whole]
        for line in found:
            (self.open.add if line["what"] == "start" else self.open.discard)(line["run"])
        self.lines += found
        return found

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Rig:
    """One work with one system."""

    def __init__(self, system: System, work: Work, case: Case, place: Path) -> None:
        self._work = work
        self._system = system
        self._start = lambda verb: Process(system, case, verb, place)
        self._ledger = Ledger(Path(case.ledger))
        self._worker = self._start("work")
        self._sender = self._start("send")
        self._sent: dict[tuple[str, int], Sent] = {}
        self._answered: dict[tuple[str, int], str | None] = {}
        self._kills_ms: list[float] = []
        self._deaths: list[str] = []
        self._due: list[tuple[float, int, Send]] = []
        self._waiting: dict[tuple[str, str], list[Send]] = defaultdict(list)
        self._changed_s = time.monotonic()
        self._client = redis.Redis.from_url(case.url)
        self._reader = threading.Thread(target=self._read_answers, daemon=True)

    def run(self) -> dict[str, Any]:
        """Do the work; return its figures."""
        self._reader.start()
        self._probe()
        begun_s = time.monotonic()
        for send in self._work.sends:
            self._waiting[send.after, send.key].append(send)
        for after, key in [each for each in self._waiting if each[0] == works.BEGIN]:
            self._trigger(after, key)
        while not self._over(begun_s):
            self._step(begun_s)
            time.sleep(STEP_S)
        answered = {each: self._answered.get(each, "no answer") for each in self._sent}
        sends = {each: Sent(sent.value, sent.at_ms, answered[each]) for each, sent in self._sent.items()}
        lines = [line for line in self._ledger.lines if line["key"] != PROBE]
        figures = judge(sends, lines, self._kills_ms)
        not_sent = sum(len(left) for left in self._waiting.values())
        ended = {"worker_ended": self._deaths, "unfinished": time.monotonic() - begun_s > LIMIT_S}
        return {**figures, "left": self._left(), "not_sent": not_sent, **ended}

    def end(self) -> None:
        """End its processes."""
        for process in (self._sender, self._worker):
            process.end()
        self._ledger.close()
        self._client.close()

    def _probe(self) -> None:
        self._tell(Send(PROBE, 1, 0, works.BEGIN, 0))
        deadline_s = time.monotonic() + PROBE_LIMIT_S
        while not any(line["key"] == PROBE and line["what"] != "start" for line in self._ledger.lines):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"nothing arrived: {self._worker.problem()}; {self._sender.problem()}")
            self._ledger.news()
            time.sleep(STEP_S)

    def _step(self, begun_s: float) -> None:
        now_s = time.monotonic()
        for line in self._ledger.news():
            self._changed_s = now_s
            self._trigger(line["what"], line["key"])
        while self._due and self._due[0][0] <= now_s:
            send = heapq.heappop(self._due)[2]
            self._sent[send.key, send.number] = Sent(send.value, time.time() * 1000)
            self._tell(send)
            self._changed_s = now_s
        at_s = self._work.kill_at_s
        if at_s is not None and not self._kills_ms and now_s - begun_s >= at_s and self._ledger.open:
            self._worker.kill()
            self._ledger.news()
            self._kills_ms.append(time.time() * 1000)
            self._ledger.open.clear()
            self._worker = self._start("work")
        elif not self._worker.alive():
            self._deaths.append(self._worker.problem())
            self._worker = self._start("work")

    def _trigger(self, what: str, key: str) -> None:
        for send in self._waiting.pop((what, key), ()):
            heapq.heappush(self._due, (time.monotonic() + send.offset_s, send.number, send))

    def _over(self, begun_s: float) -> bool:
        now_s = time.monotonic()
        quiet_s = now_s - self._changed_s
        busy = self._due or self._ledger.open or len(self._answered) <= len(self._sent)  # the probe is answered, too
        if busy or quiet_s <= SETTLED_S:
            return now_s - begun_s > LIMIT_S
        stuck_s = self._system.recovery_s if self._kills_ms else STUCK_S
        return quiet_s > stuck_s or now_s - begun_s > LIMIT_S or not self._left()

    def _left(self) -> int:
        """Count what is not done."""
        return sum(int(self._client.execute_command(*command)) for command in self._system.left)

    def _tell(self, send: Send) -> None:
        self._sender.say(json.dumps({"key": send.key, "number": send.number, "value": send.value}))

    def _read_answers(self) -> None:
        for line in self._sender.lines():
            answer = json.loads(line)
            self._answered[answer["key"], answer["number"]] = answer["error"]


def run(system: System, work: Work) -> dict[str, Any]:
    """Do a work with one system, on a Redis of its own; return its figures."""
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(standalone())
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmq-rivals-", ignore_cleanup_errors=True)))
        failed = place / "failed"
        failed.mkdir()
        (failed / PROBE).touch()  # it has failed before, so it does not now: nothing of it is left when the work begins
        files: dict[str, Any] = {"ledger": str(place / "ledger"), "failed": str(failed)}
        asked = {"kind": work.kind, "hold_ms": work.hold_ms, "fail_once": work.fail_once, **works.SETTINGS}
        rig = Rig(system, work, Case(servers.url, system.variant, **files | asked), place)
        stack.callback(rig.end)
        return rig.run()
