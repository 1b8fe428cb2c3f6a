"""Background jobs: redrives and purges of many messages, which take too long for a page request."""

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
    """A background job.

    Attributes:
        done: Number of messages done so far.
        result: Description of the outcome; empty while the job runs.
        ended_s: Time of the end on the monotonic clock, in seconds; 0 while the job runs.
    """

    number: int
    topic: str
    description: str
    done: int = 0
    result: str = ""
    failed: bool = False
    ended_s: float = field(default=0.0, repr=False)


class Jobs:
    """The background jobs of this process: at most 4 run at a time, and the last 20 are kept.

    Args:
        changed: Called when a job ends.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._jobs: list[Job] = []
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def of(self, topic: str) -> list[Job]:
        """Return the jobs of a topic that are running or ended in the last ten minutes, newest first."""
        now_s = time.monotonic()
        return [
            job for job in reversed(self._jobs) if job.topic == topic and (not job.ended_s or now_s - job.ended_s < 600)
        ]

    def start(self, topic: str, description: str, work: Callable[[Callable[[int], None]], str]) -> bool:
        """Start a job; return False if too many are running.

        Args:
            topic: Name of the topic.
            description: Description of the job.
            work: Does the work. It is passed a function to report progress, and returns a description of the outcome.
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
            job.result, job.failed = f"failed: {error}", True
        except Exception as error:
            log.exception("%s on topic %s failed", job.description, job.topic)
            job.result, job.failed = f"failed: {type(error).__name__}", True
        job.ended_s = time.monotonic()
        self._changed()
