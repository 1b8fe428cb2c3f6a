"""Redrives and purges of many messages, which take longer than a page may: threads with their progress."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rmq.errors import RmqError

log = logging.getLogger("rmq.dashboard")

MOST_KEPT = 20
MOST_RUNNING = 4


@dataclass(slots=True)
class Job:
    """One such task: `done` messages so far; `result` says in words what came of it, `ended_s` is 0 while it runs."""

    number: int
    topic: str
    description: str
    done: int = 0
    result: str = ""
    failed: bool = False
    ended_s: float = field(default=0.0, repr=False)


class Jobs:
    """The tasks of this process: at most a few at a time, the last ones kept. `changed` is called when one ends."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._jobs: list[Job] = []
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def of(self, topic: str) -> list[Job]:
        """Return a topic's tasks of the last ten minutes, the newest first."""
        now_s = time.monotonic()
        return [
            job for job in reversed(self._jobs) if job.topic == topic and (not job.ended_s or now_s - job.ended_s < 600)
        ]

    def start(self, topic: str, description: str, work: Callable[[Callable[[int], None]], str]) -> bool:
        """Start a task; return whether there was room for it.

        Args:
            topic: Name of its topic.
            description: What it does, in words.
            work: Does it; is given a function to report to, and returns in words what came of it.
        """
        with self._lock:
            if sum(not job.ended_s for job in self._jobs) >= MOST_RUNNING:
                return False
            job = Job(next(self._numbers), topic, description)
            self._jobs = [*self._jobs[-MOST_KEPT + 1 :], job]
        threading.Thread(target=self._run, args=(job, work), name=f"rmq-job-{job.number}", daemon=True).start()
        return True

    def _run(self, job: Job, work: Callable[[Callable[[int], None]], str]) -> None:
        def report(done: int) -> None:
            job.done = done

        try:
            job.result = work(report)
        except RmqError as error:
            job.result, job.failed = f"broke off: {error}", True
        except Exception as error:
            log.exception("%s on topic %s failed", job.description, job.topic)
            job.result, job.failed = f"broke off: {type(error).__name__}", True
        job.ended_s = time.monotonic()
        self._changed()
