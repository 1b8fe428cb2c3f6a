"""A thread of a listener: it claims, calls the handler, and settles what came of it with its next claim."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rmq.adaptive import Adaptive
from rmq.blocking import Background, Event
from rmq.claimer import IDLE_S, Claimer
from rmq.clock import monotonic_s
from rmq.coordination import Coordinator, Ownership
from rmq.delivery import ACKED, RELEASED, Delivery, Outcome, Verb, describe
from rmq.errors import InvalidValueError, RmqError
from rmq.leases import Held
from rmq.logs import about
from rmq.observing import Observers
from rmq.pace import MOST_AHEAD, Pace
from rmq.stream_values import check_group
from rmq.topics import Topic
from rmq.turns import Gate

log = logging.getLogger("rmq.worker")

Handler = Callable[[Any], Any]
"""Takes a `Delivery`, or with `batch=N` a list of up to N of them."""

LOOK_EVERY_S = 1.0
"""How often an idle listener looks by itself, since hints may get lost."""

SETTLE_AFTER_S = 0.1
"""An outcome waits at most this long, and until its handler's neighbour returns, while others wait for the handler."""

RIDE_S = 0.25
"""An ack waits at most this long for the next claim from its slot, which takes it along for little; one of a message
that was claimed longer ago does not, and none does in an idle worker. Beside a handler that runs so long the watcher
sends it, which looks as often. What a killed process had handled meanwhile is delivered again."""

SLOW_S = 0.5
"""What waits behind a handler that runs longer than this goes back to the others."""

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
        group: Stream topics: the group that it consumes for; `None` for the other types.
        start: Stream topics: where the group begins if it is new: `new`, `all`, or after an id.
        adaptive: Finds how many handlers run in parallel, up to `threads`; `None`: as many as there are threads.
        weight: Its part of the handlers where the listeners of a process share them.
    """

    topic: Topic
    handler: Handler
    batch: int | None = None
    threads: int = 1
    on_lost: Callable[[Delivery], None] | None = None
    group: str | None = None
    start: str = "new"
    adaptive: Adaptive | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise InvalidValueError(f"weight is {self.weight!r}; it must be more than 0")
        if self.adaptive is not None and not isinstance(self.adaptive, Adaptive):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"adaptive is {self.adaptive!r}; it must be a rmq.Adaptive, or None")
        if self.batch is not None and (type(self.batch) is not int or not 1 <= self.batch <= 10_000):
            raise InvalidValueError(f"batch is {self.batch!r}; it must be a whole number from 1 to 10,000, or None")
        if type(self.threads) is not int or not 1 <= self.threads <= 1_000:
            raise InvalidValueError(f"threads is {self.threads!r}; it must be a whole number from 1 to 1,000")
        check_group(self.topic, self.group, self.start)

    @property
    def place(self) -> str:
        """The name under which its slots are owned: on a stream topic each group's are owned apart."""
        return self.topic.name if self.group is None else f"{self.topic.name}@{self.group}"


class Worker(Background):
    """One thread of a listener: claim, handle, settle. It holds what it has claimed until the outcome is in Redis.

    Args:
        listener: What to call.
        claimer: Where to claim; shared by all threads without ZooKeeper, of this thread's own slots with it.
        stopping: Set when no more messages may be claimed or begun.
        coordinator: This process as a worker in ZooKeeper; `None` without.
        number: Which of the listener's threads this is.
    """

    def __init__(
        self,
        listener: Listener,
        claimer: Claimer,
        stopping: Event,
        coordinator: Coordinator | None,
        number: int,
    ) -> None:
        super().__init__(claimer.blocking, f"rmq-{listener.topic.name}-{number}")
        self.handled = self.failed = 0
        self.held = Held(claimer.blocking)
        self.gate: Gate | None = None
        self.observers = Observers()
        self.claimer = claimer
        self._listener = listener
        self._stopping = stopping
        self._coordinator = coordinator
        self._waiting: deque[Delivery] = deque()
        self._pace = Pace(MOST_AHEAD)
        self._began_s: float | None = None

    def run(self) -> None:
        """Work until `stopping`."""
        while not self._stopping.is_set():
            try:
                if not self._turn():
                    self._pause()
            except Exception as error:
                log.warning("topic %s: %s", self._listener.topic.name, error, exc_info=not isinstance(error, RmqError))
                self._stopping.wait(TROUBLE_PAUSE_S)
        self._finish()

    def release_waiting(self) -> None:
        """Give back what was claimed and not begun; called from the thread that stops the runtime."""
        for delivery in self._take_waiting(len(self._waiting)):
            delivery.outcome = RELEASED
        try:
            self._settle_only()
        except RmqError as error:
            log.warning("topic %s: what was not begun comes back with its lease: %s", self._listener.topic.name, error)

    def settle(self, delivery: Delivery, outcome: Outcome) -> bool:
        """Leave the outcome noted; it goes out with the next claim. For `Delivery`."""
        del delivery, outcome
        return True

    def still_owner(self, delivery: Delivery) -> bool:
        """Return whether nobody else can own the delivery's slot yet. For `Delivery`."""
        if self._coordinator is None:
            return True
        owner, place = delivery.owner, self._listener.place
        return self._coordinator.still_owner(Ownership(place, delivery.slot, owner.epoch, owner.ensemble))

    def has_left(self, slot: int) -> bool:
        """Settle what is done; return whether nothing of a slot is held any more and no claim is under way."""
        try:
            self._settle_only()
        except RmqError as error:
            log.warning("topic %s, slot %d is not handed over yet: %s", self._listener.topic.name, slot, error)
        if not self.held.lock.acquire(timeout=TROUBLE_PAUSE_S):
            return False
        try:
            return all(delivery.slot != slot for delivery in self.held.all())
        finally:
            self.held.lock.release()

    def slots_held(self) -> Collection[int]:
        """Return the slots of which something is held; all slots while a claim is under way."""
        if not self.held.lock.acquire(timeout=TROUBLE_PAUSE_S):
            return range(self._listener.topic.slots)
        try:
            return {delivery.slot for delivery in self.held.all()}
        finally:
            self.held.lock.release()

    def _turn(self) -> bool:
        """Do a round, where turns are limited in this thread's turn; return whether there was anything to do."""
        gate = self.gate
        if gate is None:
            return self._round()
        began_s = gate.begin(0.0, id(self))
        if began_s is None:
            self._settle_only()  # what is done shall not wait for it
            began_s = gate.begin(LOOK_EVERY_S, id(self))
        if began_s is None:
            return True
        try:
            return self._round()
        finally:
            gate.end(began_s)

    def _round(self) -> bool:
        """Claim, settle and handle once; return whether there was anything to do."""
        held = self.held
        with held.lock:
            if self._listener.topic.slots > 1:
                held.let_ride(monotonic_s() - RIDE_S)
            settled = self._settled()

            def board(slots: Iterable[int] | None) -> list[Delivery]:
                boarded = held.board(slots, monotonic_s() - RIDE_S)
                settled.extend(boarded)  # what is settled while the claim is under way is not among them
                return boarded

            round_ = self.claimer.claim(self._room(), self, list(settled), held.deliveries, board)
            self._drop(settled, round_.unsent, round_.unheard)
            held.deliveries += round_.deliveries
            self._waiting.extend(round_.deliveries)
        if self._stopping.is_set():
            self.release_waiting()
        self._handle_waiting()
        return bool(settled or round_.deliveries)

    def _room(self) -> int:
        """Return how many messages to claim."""
        if self.gate is not None and self.gate.careful:
            return 1
        return self._listener.batch or self._pace.ahead()

    def _pause(self) -> None:
        """Wait until there may be something to do."""
        self.claimer.wait(IDLE_S if self.held.riding else LOOK_EVERY_S)

    def _handle_waiting(self) -> None:
        batch = self._listener.batch
        last_settled_s = monotonic_s()
        while self._waiting:
            part = self._take_waiting(batch or 1)
            self._handle(part)
            if self.gate is not None and self.gate.paused:
                self.release_waiting()
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
        ready = [delivery for delivery in part if self._may_begin(delivery, started_s)]
        if len(ready) < len(part):
            log.warning(
                "topic %s: %d messages were not begun in time", self._listener.topic.name, len(part) - len(ready)
            )
        if not ready:
            return
        self._began_s = started_s
        if self.gate is not None:
            self.gate.handling(id(self))
        try:
            self._call(ready)
            outcome = ACKED
        except BaseException as error:  # SystemExit, too: it would end this thread, and nobody else, without a word
            name = self._listener.topic.name
            log.warning("handler of topic %s failed: %r", name, error, exc_info=error, extra=about(ready))
            outcome = Outcome(Verb.NACK, None, *describe(error))
        self._began_s = None
        self.handled += len(ready)
        self.failed += 0 if outcome is ACKED else len(ready)
        for delivery in ready:
            if delivery.outcome is None:
                delivery.outcome = outcome
        if self.gate is not None:
            failed = any(each.outcome is not None and each.outcome.verb is Verb.NACK for each in ready)
            self.gate.handled(id(self), len(ready), failed)
        self._pace.note(len(ready), monotonic_s() - started_s)

    def _call(self, ready: Sequence[Delivery]) -> None:
        given = list(ready) if self._listener.batch else ready[0]
        if not self.observers.all:
            self._listener.handler(given)
            return
        with self.observers.handling(ready):
            self._listener.handler(given)

    def _may_begin(self, delivery: Delivery, now_s: float) -> bool:
        """A message whose lease or slot is no longer ours goes back: somebody else has it, or will."""
        mine = not delivery.lost and now_s < delivery.lease_until_s
        if mine and self._coordinator is not None:
            ownership = self._coordinator.owned().get((self._listener.place, delivery.slot))
            mine = ownership is not None and ownership.epoch == delivery.epoch
        if not mine:
            delivery.outcome = RELEASED
        return mine

    def _settled(self) -> list[Delivery]:
        return [delivery for delivery in self.held.deliveries if delivery.outcome is not None]

    def _drop(self, settled: Sequence[Delivery], unsent: Sequence[Delivery], unheard: Sequence[Delivery] = ()) -> None:
        """Let go of what is settled; of what did not reach Redis only where that is no longer worth repeating.

        Those of which nobody knows whether they did are let go, too: their leases settle it. Nobody is told of them.
        """
        missed = {id(delivery) for delivery in (*unsent, *unheard)}
        gone = {id(delivery) for delivery in settled} - {id(delivery) for delivery in self._worth_repeating(unsent)}
        self.held.deliveries = [delivery for delivery in self.held.deliveries if id(delivery) not in gone]
        if late := sum(1 for delivery in unsent if id(delivery) in gone):
            log.warning(
                "topic %s: %d outcomes did not reach Redis before their leases ended: the messages come again",
                self._listener.topic.name,
                late,
            )
        if self.observers.all and (arrived := [delivery for delivery in settled if id(delivery) not in missed]):
            self.observers.settled(arrived)

    def _worth_repeating(self, unsent: Sequence[Delivery]) -> list[Delivery]:
        """Outcomes that did not reach Redis are sent again as long as their leases run."""
        now_s = monotonic_s()
        return [delivery for delivery in unsent if now_s < delivery.lease_until_s]

    def relieve(self) -> None:
        """Give back what waits behind a slow handler, and send off what is done; called from the watcher's thread.

        What this thread has claimed ahead would otherwise wait as long as that handler runs, while others are idle.
        """
        began_s = self._began_s
        running_s = 0.0 if began_s is None else monotonic_s() - began_s
        if running_s > RIDE_S and self.held.riding:
            self._settle_only()
        if running_s < SLOW_S:
            return
        if self._waiting or any(delivery.outcome is not None for delivery in self.held.all()):
            self.release_waiting()

    def _settle_only(self) -> None:
        with self.held.lock:
            self.held.board()
            settled = self._settled()
            if settled:
                round_ = self.claimer.claim(0, self, settled, self.held.deliveries)
                self._drop(settled, round_.unsent, round_.unheard)

    def _finish(self) -> None:
        """Send the last outcomes; give up when their leases end."""
        with self.held.lock:
            self.held.board()
        while self._settled():
            try:
                self._settle_only()
            except RmqError as error:
                log.warning("topic %s: last outcomes: %s", self._listener.topic.name, error)
            with self.held.lock:
                settled = self._settled()
                self._drop(settled, settled)
            if self._settled():
                self.claimer.blocking.sleep(TROUBLE_PAUSE_S)
