"""The processes of a campaign: workers and producers, each started, killed, paused and replaced at will."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.campaign.clocks import Clock
from tests.histories.journal import FOREVER_S, Journal, now_s, start_process

ROOT = Path(__file__).resolve().parents[2]
STOP_LIMIT_S = 90.0


@dataclass
class Place:
    """Who holds a place in the crew.

    Attributes:
        name: For example `worker 0`.
        module: What it runs.
        links: Its ports of servers -> its links, if they can be cut.
        clock: Its wall clock, if that can jump.
        ended: Whether a fault ends its process or has ended it, and none has been started since.
    """

    name: str
    module: str
    links: Mapping[str, int] = field(default_factory=dict)
    clock: Clock | None = None
    process: subprocess.Popen[bytes] | None = None
    ended: bool = False

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid


class Crew:
    """All workers and producers.

    Args:
        journal: Where their ends are written down.
        path: The journal's file.
        folder: For logs.
        options: What all of them are told.
        chance: Draws their seeds.
    """

    def __init__(
        self, journal: Journal, path: Path, folder: Path, options: Mapping[str, Any], chance: random.Random
    ) -> None:
        self._journal = journal
        self._folder = folder
        self._options = {**options, "journal": str(path)}
        self._chance = chance
        self.workers: list[Place] = []
        self.senders: list[Place] = []
        self.bad_exits: list[str] = []

    def start(self, place: Place, source: Path = ROOT) -> None:
        """Start a process in its place; `source` has the release that it runs."""
        name = place.name.replace(" ", "-")
        log, seed = self._folder / f"{name}.log", self._chance.randrange(2**31)
        options = {**self._options, "name": name, "links": dict(place.links), "log": str(log), "seed": seed}
        options["status"] = str(self._status(place))
        environment = {**os.environ, **(place.clock.environment if place.clock else {})}
        if source != ROOT:
            environment["PYTHONPATH"] = os.pathsep.join((str(source), str(ROOT)))
        with log.open("ab") as output:
            place.process = start_process(
                [sys.executable, "-m", f"tests.campaign.{place.module}", json.dumps(options)],
                cwd=ROOT if source == ROOT else source,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )
        place.ended = False

    def owned(self, since_s: float) -> int:
        """Return how many slots the workers own together, as all of them have said since a time; -1 where one has not.

        Args:
            since_s: Seconds since 1970.
        """
        owned = 0
        for place in self.workers:
            status = self._status(place)
            if not status.exists() or status.stat().st_mtime < since_s:
                return -1
            words = status.read_text().split()
            if len(words) != 2 or int(words[0]) != place.pid:
                return -1
            owned += int(words[1])
        return owned

    def _status(self, place: Place) -> Path:
        return self._folder / f"{place.name.replace(' ', '-')}.status"

    def kill(self, place: Place) -> None:
        """SIGKILL: what it was at ends now."""
        assert place.process is not None
        place.ended = True
        place.process.kill()
        place.process.wait()
        _close(place)
        self._journal.trouble(f"{place.module} killed", f"pid {place.pid}", now_s(), FOREVER_S)

    def pause(self, place: Place) -> None:
        """SIGSTOP."""
        os.kill(place.pid, signal.SIGSTOP)

    def resume(self, place: Place) -> None:
        """SIGCONT."""
        os.kill(place.pid, signal.SIGCONT)

    def end(self, places: Sequence[Place]) -> None:
        """Let processes end in order: workers by SIGTERM, producers with their input."""
        for place in places:
            place.ended = True
            if place.module == "worker":
                os.kill(place.pid, signal.SIGTERM)
            _close(place)
        for place in places:
            assert place.process is not None
            code = place.process.wait(STOP_LIMIT_S)
            if code:
                self.bad_exits.append(f"{place.name} ended with code {code}")

    def check(self) -> None:
        """Note who has ended by itself; a fault of another lane may be ending and starting others right now."""
        for place in (*self.workers, *self.senders):
            process = place.process
            assert process is not None
            code = process.poll()
            if code is None or place.ended or place.process is not process:
                continue
            if not any(place.name in said for said in self.bad_exits):
                self.bad_exits.append(f"{place.name} ended by itself with code {code}")

    def kill_all(self) -> None:
        """Kill what still runs."""
        for place in (*self.workers, *self.senders):
            if place.process is not None:
                place.process.kill()
                place.process.wait()
                _close(place)


def _close(place: Place) -> None:
    assert place.process is not None
    assert place.process.stdin is not None
    place.process.stdin.close()
