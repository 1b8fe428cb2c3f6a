"""Docket: its Debounce for each key, as its manual shows it, with retries and one run of a key at a time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated

from docket import ConcurrencyLimit, Debounce, Docket, Retry, Worker
from rival import Run, case, obey

CASE = case()
REDELIVERY_S = 20


def docket() -> Docket:
    """Return the queue."""
    return Docket(name="rival", url=CASE.url)


async def update(
    key: Annotated[str, Debounce(timedelta(milliseconds=CASE.quiet_ms)), ConcurrencyLimit(1)],
    number: int,
    value: int,
    retry: Retry = Retry(attempts=6, delay=timedelta(milliseconds=CASE.retry_ms)),  # noqa: B008
) -> None:
    """Handle one send."""
    run = Run(CASE, key, [(number, value)])
    await asyncio.sleep(CASE.hold_ms / 1000)
    run.end()


class Sender:
    """Sends on a loop of its own, over one connection."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._docket = docket()
        self._runner.run(self._docket.__aenter__())

    def send(self, key: str, number: int, value: int) -> None:
        """Send at once: it is the worker that lets a key settle."""
        self._runner.run(self._add(key, number, value))

    async def _add(self, key: str, number: int, value: int) -> None:
        await self._docket.add(update)(key=key, number=number, value=value)


def send(key: str, number: int, value: int) -> None:
    """Send."""
    global _sender
    if _sender is None:
        _sender = Sender()
    _sender.send(key, number, value)


_sender: Sender | None = None


def work() -> None:
    """Run a worker."""
    asyncio.run(_work())


async def _work() -> None:
    async with docket() as queue:
        queue.register(update)
        redelivery = timedelta(seconds=REDELIVERY_S)
        async with Worker(queue, concurrency=CASE.concurrency, redelivery_timeout=redelivery) as worker:
            await worker.run_forever()


if __name__ == "__main__":
    obey(send, work)
