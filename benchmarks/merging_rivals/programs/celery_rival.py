"""Celery with a package that merges: celery-singleton, celery-once or celery-debounce."""

from __future__ import annotations

import os

from celery_tasks import CASE, app, update
from rival import obey

PROCESSES = 20


def send(key: str, number: int, value: int) -> None:
    """Send with a delay of one window.

    celery-debounce takes tasks with equal positional arguments for the same: with all by keyword, as its manual shows,
    those of different keys would be, too.
    """
    if CASE.variant == "debounce":
        update.debounce(key, number=number, value=value, countdown=CASE.quiet_ms / 1000)
    else:
        sent = {"key": key, "number": number, "value": value}
        update.apply_async(kwargs=sent, countdown=CASE.quiet_ms / 1000)


def work() -> None:
    """Run a worker: threads; for celery-debounce processes, for its question to the workers hangs in threads."""
    os.environ.setdefault("C_FORCE_ROOT", "1")
    pool, size = ("prefork", PROCESSES) if CASE.variant == "debounce" else ("threads", CASE.concurrency)
    app.worker_main(["worker", "-P", pool, "-c", str(size), "-l", "WARNING"])


if __name__ == "__main__":
    obey(send, work)
