"""Async listeners: one worker claims and settles for many handlers, which run as tasks."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from rmq.aio.delivery import faced, faced_all
from rmq.aio.greenlets import Tasks, wait
from rmq.claimer import Claimer
from rmq.clock import monotonic_s
from rmq.delivery import Delivery as PlainDelivery
from rmq.errors import InvalidValueError
from rmq.pace import MOST_AHEAD
from rmq.runtime import ListenerRuntime
from rmq.turns import Turns
from rmq.worker import LOOK_EVERY_S, RIDE_S, SLOW_S, Listener, Worker

AsyncHandler = Callable[[Any], Coroutine[Any, Any, Any]]
"""Takes a `Delivery`, or with `batch=N` a list of up to N of them."""

LONGEST_TURN_S = 0.01
"""Handlers that never wait let the other tasks run after so long."""


class TaskWorker(Worker):
    """Claims, settles, and keeps up to `listener.threads` lanes busy: tasks that call the handler, one part at a time.

    With ZooKeeper the messages of a slot run one after the other: a slot is in one lane at a time.
    """

    _busy: set[int]

    def __init__(self, listener: Listener, claimer: Claimer, *rest: Any) -> None:
        super().__init__(listener, claimer, *rest)
        self._lanes = 0
        self._busy = set()
        self._begun_s = 0.0
        self._news = claimer.blocking.event()

    def relieve(self) -> None:
        """Give back what waits while all lanes are held up; called from the watcher."""
        if self._waiting and monotonic_s() - self._begun_s > SLOW_S:
            self.release_waiting()

    def _room(self) -> int:
        lanes = self._listener.threads
        most = self._listener.batch * lanes if self._listener.batch else max(lanes, min(self._ahead(), MOST_AHEAD))
        return max(0, most - sum(1 for delivery in self.held.deliveries if delivery.outcome is None))

    def _ahead(self) -> int:
        return self._listener.threads * self._pace.ahead()

    def _round(self) -> bool:
        told = self._news.is_set()
        self._news.clear()  # before looking: what ends from now on tells anew
        return bool(told or self._room()) and super()._round()

    def _pause(self) -> None:
        if self._news.is_set():
            return
        if self._room():
            super()._pause()
        else:
            self._news.wait(RIDE_S if self.held.riding else LOOK_EVERY_S)
            self._news.set()  # look now and then even if nothing has ended

    def _handle_waiting(self) -> None:
        """Start lanes; they end by themselves."""
        self._begun_s = monotonic_s()
        for _ in range(min(len(self._waiting), self._listener.threads - self._lanes)):
            self._lanes += 1
            self.claimer.blocking.job(self._lane, f"rmq-{self._listener.topic.name}").start()

    def _lane(self) -> None:
        task, turn_s = asyncio.current_task(), monotonic_s()
        try:
            while part := self._take_ready():
                slots = set[int]() if self._coordinator is None else {delivery.slot for delivery in part}
                self._busy |= slots
                self._begun_s = monotonic_s()
                try:
                    self._handle(part)
                finally:
                    self._busy -= slots
                self._tell()
                if task is not None and task.cancelling():  # the program ends
                    return
                if monotonic_s() - turn_s > LONGEST_TURN_S:
                    self.claimer.blocking.sleep(0)
                    turn_s = monotonic_s()
        finally:
            self._lanes -= 1
            self._tell()

    def _take_ready(self) -> Sequence[PlainDelivery]:
        """Take what a lane may begin now."""
        most = self._listener.batch or 1
        if self._coordinator is None:
            return self._take_waiting(most)
        taken: list[PlainDelivery] = []
        left: deque[PlainDelivery] = deque()
        while self._waiting and len(taken) < most:
            delivery = self._waiting.popleft()
            (left if delivery.slot in self._busy else taken).append(delivery)
        self._waiting.extendleft(reversed(left))
        return taken

    def _tell(self) -> None:
        if not self._news.is_set():
            self._news.set()
            self.claimer.wake_all()

    def _finish(self) -> None:
        while self._lanes:
            self._news.wait(LOOK_EVERY_S)
            self._news.clear()
            if self._lanes:
                self._settle_quietly()
        super()._finish()

    def _settle_quietly(self) -> None:
        self.has_left(-1)


class TaskRuntime(ListenerRuntime):
    """A listener at work in an event loop: one worker with as many lanes as the listener wants."""

    def _workers_wanted(self) -> int:
        return 1

    def take_turns(self, turns: Turns) -> None:
        """Refuse what limits threads: here handlers are tasks."""
        if turns.shared or self.listener.adaptive is not None:
            raise InvalidValueError("adaptive and shared handlers run in threads: use rmq.RmqClient")

    def _new_worker(self, claimer: Claimer, number: int) -> Worker:
        return TaskWorker(self.listener, claimer, self.stopping, self._coordinator, number)


def checked_handler(handler: object) -> None:
    """Refuse a handler that would hold up the event loop."""
    if not inspect.iscoroutinefunction(handler) and not inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        raise InvalidValueError(f"{handler!r} is no async function; use rmq.RmqClient for handlers that run in threads")


def plain_listener(listener: Listener, tasks: Tasks) -> Listener:
    """Return a listener whose handler plain logic can call."""
    checked_handler(listener.handler)
    on_lost = listener.on_lost

    def handle_one(delivery: PlainDelivery) -> None:
        wait(listener.handler(faced(delivery, tasks)))

    def handle_batch(deliveries: list[PlainDelivery]) -> None:
        wait(listener.handler(faced_all(deliveries, tasks)))

    def tell_lost(delivery: PlainDelivery) -> None:
        if on_lost is not None:
            on_lost(faced(delivery, tasks))  # pyright: ignore[reportArgumentType]

    return replace(listener, handler=handle_one if listener.batch is None else handle_batch, on_lost=tell_lost)
