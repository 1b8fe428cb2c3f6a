"""The Celery application: one task, by the base class of a package, as that package's manual shows it.

The broker's settings are those of Celery's manual for tasks that must not get lost: `acks_late`, and a visibility
timeout longer than any delay here; with the look for what timed out that Kombu's manual advises for a short one. (By
default the same happens after an hour, looked for every 100 s.)
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from rival import FailedOnceError, case, handle

CASE = case()
NAME = "celery_tasks.update"
VISIBILITY_S = 200 if CASE.variant == "debounce" else 20
"""celery-debounce lets each send wait while it asks the workers, for a second: with many sends, for minutes."""
LOCK_S = 30
"""celery-singleton's manual advises a lock that is a little longer than the task."""

app = Celery("rival", broker=CASE.url)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    broker_transport_options={
        "visibility_timeout": VISIBILITY_S,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
    },
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": CASE.url, "default_timeout": LOCK_S}},
)


def options() -> dict[str, Any]:
    """Return what the variant adds to the task."""
    if CASE.variant == "singleton":
        from celery_singleton import Singleton

        return {"base": Singleton, "unique_on": ["key"], "lock_expiry": LOCK_S}
    if CASE.variant == "debounce":
        from celery_debounce.celery_debounce import DebouncedTask

        return {"base": DebouncedTask}
    from celery_once import QueueOnce

    return {"base": QueueOnce, "once": {"keys": ["key"], "unlock_before_run": CASE.variant == "once_unlocked"}}


@app.task(
    name=NAME,
    autoretry_for=(FailedOnceError,),
    retry_kwargs={"max_retries": 5, "countdown": CASE.retry_ms / 1000},
    **options(),
)
def update(key: str, number: int, value: int) -> None:
    """Handle one send."""
    handle(CASE, key, [(number, value)])
