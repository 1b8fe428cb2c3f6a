"""Async listeners: one worker claims and settles for many handlers, which run as tasks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from rmq._claiming.prefetch_size import MOST_PREFETCHED
from rmq._listening.arguments import with_arguments
from rmq._listening.listener import Listener
from rmq._listening.listener_thread import LOOK_EVERY_S, PIGGYBACK_S, SLOW_S, HandlersInTurn, ListenerThread
from rmq._model.claim_columns import number_of
from rmq._model.deliveries import Delivery as PlainDelivery
from rmq._model.handlers import check_async
from rmq._model.times import monotonic_s
from rmq._model.typed import PayloadT
from rmq.aio.delivery import Delivery, DeliveryColumns, faced, faced_all
from rmq.aio.greenlets import Tasks, wait
from rmq.errors import InvalidValueError

AsyncHandler = Callable[..., Coroutine[Any, Any, Any]]
"""Takes a `Delivery`, or with `batch=N` a list of up to N of them, or what its annotations ask for."""

P = ParamSpec("P")
R = TypeVar("R")
_Done: TypeAlias = Coroutine[Any, Any, R]


class HandlerDecorator(Protocol[PayloadT]):
    """Takes an async handler of a topic: what its first parameter may be, for type checkers."""

    @overload
    def __call__(
        self, handler: Callable[Concatenate[Delivery[PayloadT], P], _Done[R]], /
    ) -> Callable[Concatenate[Delivery[PayloadT], P], _Done[R]]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[list[Delivery[PayloadT]], P], _Done[R]], /
    ) -> Callable[Concatenate[list[Delivery[PayloadT]], P], _Done[R]]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[DeliveryColumns, P], _Done[R]], /
    ) -> Callable[Concatenate[DeliveryColumns, P], _Done[R]]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[list[PayloadT], P], _Done[R]], /
    ) -> Callable[Concatenate[list[PayloadT], P], _Done[R]]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[PayloadT, P], _Done[R]], /
    ) -> Callable[Concatenate[PayloadT, P], _Done[R]]: ...


LONGEST_TURN_S = 0.01
"""Handlers that never wait let the other tasks run after so long."""


class HandlersInTasks(HandlersInTurn):
    """Up to `listener.threads` handlers run at a time, in lanes: tasks that call the handler with one part at a time.

    With ZooKeeper the messages of a slot run one after the other: a slot is in one lane at a time.
    """

    survived = Exception

    def __init__(self, thread: ListenerThread) -> None:
        super().__init__(thread)
        if thread.setup.gate is not None:
            raise InvalidValueError("adaptive and shared handlers run in threads: use rmq.RmqClient")
        self._owned = thread.setup.coordinator is not None
        self._stopping = thread.setup.stopping
        self._most_lanes = thread.setup.listener.threads
        self._lanes = 0
        self._busy = set[int]()
        self._begun_s = 0.0
        self._changed = thread.blocking.event()

    @staticmethod
    def threads_of(listener: Listener) -> int:
        """Return one: it claims for all lanes."""
        del listener
        return 1

    def room(self) -> int | None:
        """Return how many messages to claim; `None` where nothing has changed and all lanes have enough."""
        changed = self._changed.is_set()
        self._changed.clear()  # before looking: what ends from now on sets it anew
        room = self._free()
        return room if changed or room else None

    def claims_ahead(self, number: int) -> bool:
        """Return False: lanes work while it claims."""
        del number
        return False

    def run(self) -> None:
        """Start lanes; they end by themselves."""
        thread = self.thread
        if self._stopping.is_set():
            thread.begin_no_more()
        self._begun_s = monotonic_s()
        for _ in range(min(len(thread.waiting), self._most_lanes - self._lanes)):
            self._lanes += 1
            thread.blocking.job(self._lane, f"rmq-{thread.setup.listener.topic.name}").start()

    def wait(self) -> None:
        """Wait until a lane has ended its part, or until something may be claimed if there is room for it."""
        if self._changed.is_set():
            return
        if self._free():
            self.thread.wait()
        else:
            soon = self.thread.held.deferred or self.thread.claims.has_earlier
            self._changed.wait(PIGGYBACK_S if soon else LOOK_EVERY_S)
            self._changed.set()  # look now and then even if nothing has ended

    def relieve(self) -> None:
        """Give back what waits while all lanes are held up."""
        if self.thread.waiting and monotonic_s() - self._begun_s > SLOW_S:
            self.thread.release_waiting()

    def finish(self) -> None:
        """Begin no more, wait for the lanes while their outcomes go to Redis, and let the thread finish."""
        self.thread.begin_no_more()
        while self._lanes:
            self._changed.wait(LOOK_EVERY_S)
            self._changed.clear()
            if self._lanes:
                self.thread.try_to_settle()
        self.thread.finish()

    def _free(self) -> int:
        lanes = self._most_lanes
        ahead = lanes * self.calls.prefetch.messages()
        most = self.batch * lanes if self.batch else max(lanes, min(ahead, MOST_PREFETCHED))
        return max(0, most - number_of([each for each in self.thread.held.deliveries if each.outcome is None]))

    def _lane(self) -> None:
        task, turn_s = asyncio.current_task(), monotonic_s()
        try:
            while not self._stopping.is_set() and (part := self._take_ready()):
                slots = {delivery.slot for delivery in part} if self._owned else set[int]()
                self._busy |= slots
                self._begun_s = monotonic_s()
                try:
                    self.calls.handle(part)
                finally:
                    self._busy -= slots
                self._note_change()
                if task is not None and task.cancelling():  # the program ends
                    return
                if monotonic_s() - turn_s > LONGEST_TURN_S:
                    self.thread.blocking.sleep(0)
                    turn_s = monotonic_s()
        finally:
            self._lanes -= 1
            self._note_change()

    def _take_ready(self) -> Sequence[PlainDelivery]:
        """Take what a lane may begin now."""
        most = self.batch or 1
        if not self._owned:
            return self.thread.take_waiting(most)
        taken: list[PlainDelivery] = []
        left: deque[PlainDelivery] = deque()
        waiting = self.thread.waiting
        while waiting and number_of(taken) < most:
            delivery = waiting.popleft()
            (left if delivery.slot in self._busy else taken).append(delivery)
        waiting.extendleft(reversed(left))
        return taken

    def _note_change(self) -> None:
        if not self._changed.is_set():
            self._changed.set()
            self.thread.claimer.wake_all()


def plain_listener(listener: Listener, tasks: Tasks) -> Listener:
    """Return a listener whose handler plain logic can call."""
    check_async(listener.handler)
    on_lost = listener.on_lost

    face: Callable[[Any, Tasks], Any] = faced if listener.batch is None else faced_all
    face = DeliveryColumns if listener.columns else face

    handler = with_arguments(listener.topic, listener.handler, listener.batch is not None, listener.columns)

    def handle(given: Any) -> object:
        return wait(handler(face(given, tasks)))

    def tell_lost(delivery: PlainDelivery) -> object:
        return None if on_lost is None else on_lost(faced(delivery, tasks))  # pyright: ignore[reportArgumentType]

    return replace(listener, handler=handle, on_lost=tell_lost)
