"""The push side: threads that claim, call a handler, and settle what came of it with their next claim."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rmq.claimer import Claimer
from rmq.clock import monotonic_s
from rmq.connections import Connections
from rmq.delivery import ACKED, RELEASED, Delivery, Outcome, Verb, collect, describe
from rmq.errors import InvalidValueError, RmqError
from rmq.leases import Held, LeaseKeeper
from rmq.pace import MOST_AHEAD, Pace
from rmq.slot import SlotWriter
from rmq.topics import Topic
from rmq.wakeups import HintReader

log = logging.getLogger("rmq.listener")

Handler = Callable[[Any], Any]
"""Takes a `Delivery`, or with `batch=N` a list of up to N of them."""

LOOK_EVERY_S = 1.0
"""How often an idle listener looks by itself, since hints may get lost."""

SETTLE_AFTER_S = 0.1
"""An outcome waits at most this long, and until its handler's neighbour returns, for a claim to ride on."""

TROUBLE_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Listener:
    """A handler and how to run it.

    Attributes:
        topic: The registered definition.
        handler: What to call.
        batch: Most deliveries handed over at once, as a list; `None`: one at a time, not as a list.
        threads: How many handlers run in parallel.
        on_lost: Called with a delivery whose lease was lost while it was held; from another thread.
    """

    topic: Topic
    handler: Handler
    batch: int | None = None
    threads: int = 1
    on_lost: Callable[[Delivery], None] | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and (type(self.batch) is not int or not 1 <= self.batch <= 10_000):
            raise InvalidValueError(f"batch is {self.batch!r}; it must be a whole number from 1 to 10,000, or None")
        if type(self.threads) is not int or not 1 <= self.threads <= 1_000:
            raise InvalidValueError(f"threads is {self.threads!r}; it must be a whole number from 1 to 1,000")


class ListenerRuntime:
    """A listener at work: its worker threads, a watcher for hints, and a keeper for leases.

    Args:
        connections: Where the topic is.
        listener: What to run.
    """

    def __init__(self, connections: Connections, listener: Listener) -> None:
        topic = listener.topic
        self.listener = listener
        self.stopping = threading.Event()
        self.claimer = Claimer(connections, topic, range(topic.slots))
        self.writer = SlotWriter(connections, topic)
        self._workers = [_Worker(self, number) for number in range(listener.threads)]
        self._keeper = LeaseKeeper(self.writer, [worker.held for worker in self._workers], self._lost)
        self._watcher = threading.Thread(target=self._watch, name=f"rmq-watch-{topic.name}", daemon=True)
        self._hints = HintReader(connections, topic.name, range(topic.slots))

    def start(self) -> None:
        """Start claiming."""
        for thread in (self._watcher, self._keeper, *self._workers):
            thread.start()

    def request_stop(self) -> None:
        """Stop claiming, and give back at once what was claimed and not begun. Does not wait."""
        self.stopping.set()
        self.claimer.wake_all()
        for worker in self._workers:
            worker.release_waiting()

    def join(self, until_s: float) -> list[Delivery]:
        """Wait for running handlers until a moment of `monotonic_s`.

        Returns:
            The deliveries whose handlers still run; they stay claimed until their lease ends.
        """
        for worker in self._workers:
            worker.join(max(0.0, until_s - monotonic_s()))
        self._keeper.stop()
        self._watcher.join()
        self._hints.close()
        return [delivery for worker in self._workers if worker.is_alive() for delivery in worker.held.deliveries]

    def _lost(self, delivery: Delivery) -> None:
        if self.listener.on_lost is not None:
            try:
                self.listener.on_lost(delivery)
            except Exception:
                log.exception("on_lost of topic %s failed", self.listener.topic.name)

    def _watch(self) -> None:
        """Hear hints, and look by itself every second or so."""
        next_look_s = 0.0
        while not self.stopping.is_set():
            try:
                missed = self.claimer.listen(self._hints, 0.25)
                if missed or monotonic_s() >= next_look_s:
                    next_look_s = monotonic_s() + LOOK_EVERY_S
                    self.claimer.look()
                if not self._hints.connected:
                    self.stopping.wait(0.25)
            except Exception as error:
                log.warning("topic %s: looking for work failed: %s", self.listener.topic.name, error)
                self.stopping.wait(TROUBLE_PAUSE_S)


class _Worker(threading.Thread):
    """One thread: claim, handle, settle."""

    def __init__(self, runtime: ListenerRuntime, number: int) -> None:
        super().__init__(name=f"rmq-{runtime.listener.topic.name}-{number}", daemon=True)
        self.held = Held()
        self._runtime = runtime
        self._listener = runtime.listener
        self._waiting: deque[Delivery] = deque()
        self._pace = Pace(MOST_AHEAD)

    def run(self) -> None:
        stopping = self._runtime.stopping
        while not stopping.is_set():
            try:
                if not self._round():
                    self._runtime.claimer.wait(LOOK_EVERY_S)
            except Exception as error:
                log.warning("topic %s: %s", self._listener.topic.name, error, exc_info=not isinstance(error, RmqError))
                stopping.wait(TROUBLE_PAUSE_S)
        self._finish()

    def release_waiting(self) -> None:
        """Give back what was claimed and not begun; called from the thread that stops the runtime."""
        for delivery in self._take_waiting(len(self._waiting)):
            delivery.outcome = RELEASED
        try:
            self._settle_only()
        except RmqError as error:
            log.warning("topic %s: what was not begun comes back with its lease: %s", self._listener.topic.name, error)

    def _round(self) -> bool:
        """Claim, settle and handle once; return whether there was anything to do."""
        listener = self._listener
        limit = listener.batch or self._pace.ahead()
        with self.held.lock:
            settled = self._settled()
            round_ = self._runtime.claimer.claim(limit, collect, settled)
            self._drop(settled, round_.unsent)
            self.held.deliveries += round_.deliveries
            self._waiting.extend(round_.deliveries)
        if self._runtime.stopping.is_set():
            self.release_waiting()
        self._handle_waiting()
        return bool(settled or round_.deliveries)

    def _handle_waiting(self) -> None:
        batch = self._listener.batch
        last_settled_s = monotonic_s()
        while self._waiting:
            part = self._take_waiting(batch or 1)
            self._handle(part)
            if self._waiting and monotonic_s() - last_settled_s > SETTLE_AFTER_S:
                self._settle_only()
                last_settled_s = monotonic_s()

    def _take_waiting(self, most: int) -> list[Delivery]:
        taken: list[Delivery] = []
        try:
            while len(taken) < most:
                taken.append(self._waiting.popleft())
        except IndexError:  # no more, or the stopping thread was faster
            pass
        return taken

    def _handle(self, part: Sequence[Delivery]) -> None:
        started_s = monotonic_s()
        ready = [delivery for delivery in part if not delivery.lost and started_s < delivery.lease_until_s]
        if len(ready) < len(part):
            gone = [delivery for delivery in part if delivery not in ready]
            log.warning("topic %s: %d messages were not begun within their lease", self._listener.topic.name, len(gone))
            with self.held.lock:
                self._drop(gone, [])
        if not ready:
            return
        try:
            self._listener.handler(list(ready) if self._listener.batch else ready[0])
            outcome = ACKED
        except Exception as error:
            log.warning("handler of topic %s failed: %r", self._listener.topic.name, error, exc_info=error)
            outcome = Outcome(Verb.NACK, None, *describe(error))
        for delivery in ready:
            if delivery.outcome is None:
                delivery.outcome = outcome
        self._pace.note(len(ready), monotonic_s() - started_s)

    def _settled(self) -> list[Delivery]:
        return [delivery for delivery in self.held.deliveries if delivery.outcome is not None]

    def _drop(self, settled: Sequence[Delivery], unsent: Sequence[Delivery]) -> None:
        gone = {id(delivery) for delivery in settled} - {id(delivery) for delivery in unsent}
        self.held.deliveries = [delivery for delivery in self.held.deliveries if id(delivery) not in gone]

    def _settle_only(self) -> None:
        with self.held.lock:
            settled = self._settled()
            if settled:
                round_ = self._runtime.claimer.claim(0, collect, settled)
                self._drop(settled, round_.unsent)

    def _finish(self) -> None:
        """Send the last outcomes; give up when their leases end."""
        while self._settled():
            try:
                self._settle_only()
            except RmqError as error:
                log.warning("topic %s: last outcomes: %s", self._listener.topic.name, error)
            with self.held.lock:
                self._drop([each for each in self._settled() if each.lease_until_s < monotonic_s()], [])
            if self._settled():
                time.sleep(TROUBLE_PAUSE_S)
