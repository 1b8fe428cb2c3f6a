"""Async listeners: one worker claims and settles for many handlers, which run as tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from rmq._broker.claims import CLAIM_BYTES
from rmq._claiming.claim_planner import ClaimPlanner
from rmq._claiming.rounds import MOST_BATCHED, MOST_PREFETCHED, PREFETCH_S
from rmq._listening.arguments import with_arguments
from rmq._listening.concurrency import PermitRequest
from rmq._listening.handler_invoker import ListenerSetup
from rmq._listening.listener import Listener, SharedOptions
from rmq._listening.worker import BATCHES_S, LOOK_EVERY_S, PIGGYBACK_S, SLOW_S, Worker
from rmq._model.claims import Selection
from rmq._model.deliveries import Delivery as PlainDelivery
from rmq._model.handlers import check_async
from rmq._model.times import monotonic_s
from rmq._model.typed import PayloadT
from rmq.aio.delivery import Delivery, DeliveryColumns, wrap_deliveries, wrap_delivery
from rmq.aio.greenlets import OwnContext, TaskGroup, wait

P = ParamSpec("P")
R = TypeVar("R")
_Done: TypeAlias = Coroutine[Any, Any, R]


class HandlerDecorator(Protocol[PayloadT]):
    """Decorator of an async handler; its overloads tell type checkers the types of the first parameter."""

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


class ListenerOptions(SharedOptions, total=False):
    """Options of an async listener besides its topic. `rmq.aio.RmqClient.listener` explains them."""

    concurrency: int
    on_lost: Callable[[Delivery], None] | None


def plain_options(options: ListenerOptions) -> dict[str, Any]:
    """Return the options of a plain listener, where `concurrency` is called `threads`."""
    rest = {**options}
    return {"threads": rest.pop("concurrency", 1), **rest}


LONGEST_TURN_S = 0.01
"""Seconds after which lanes let other tasks run if their handlers never wait."""


CANCEL_S = 5.0
"""Seconds that a handler may take to end after it was cancelled at its timeout; then it is abandoned."""


class TaskWorker(Worker):
    """Runs up to `listener.threads` handlers in parallel lanes: tasks that call the handler with one part at a time.

    With owners the messages of a slot run one after the other: a slot is in one lane at a time. If the number of
    handlers is limited, a lane needs a permit of the listener. Permits are taken before the claim, so that no more is
    claimed than may start; unused ones are returned at once.
    """

    survived = Exception
    grace_s = CANCEL_S
    claims_for_all = True

    def __init__(self, setup: ListenerSetup, planner: ClaimPlanner, number: int) -> None:
        super().__init__(setup, planner, number)
        self._owned = setup.coordinator is not None
        self._max_tasks = setup.listener.threads
        self._task_count = 0
        self._busy: dict[int, float] = {}
        """If a slot may be in one lane only: slot → start of its running message."""
        self._permits_held: list[float] = []
        """Permits of the lanes that are to start."""
        self._request: PermitRequest | None = None
        """Request for one more permit, if none was free."""
        self._begun_s = 0.0
        self._filled_s, self._waited = 0.0, 0
        """Time of the last claim with messages, and number of parts that waited after the last check."""
        self._held_up = False
        """Whether waiting messages were released, and no lane has ended its part since."""
        self._full = False
        """Whether there was no room for more messages at the last check."""
        self._changed = self.runtime.event()
        self._ended = self.runtime.event()
        """Set whenever a handler has ended."""

    def permitted_round(self) -> bool:
        """Run a round with the permits that are available."""
        try:
            busy = self.round()
        finally:
            self._release_permits()
        if busy and self.going_back():
            self._changed.set()  # a call takes so many at most, and nobody tells that it has
        return busy

    def room(self) -> int | None:
        """Return how many messages to claim; `None` if nothing has changed and all lanes have enough."""
        changed = self._changed.is_set()
        self._changed.clear()  # before looking: what ends from now on sets it anew
        if self._busy:
            self._leave_slow_slots()
        self._acquire_permits()
        room = self._free()
        self._full = not room
        return room if changed or room or (self._permits_held and self.waiting) else None

    def claims_ahead(self, number: int, slots: int) -> bool:
        """Return False: lanes work while it claims."""
        del number, slots
        return False

    def start_waiting(self) -> None:
        """Start lanes for the waiting messages. A lane ends when it has nothing more to start."""
        if self._may_not_start:
            self.stop_starting()
        now_s = monotonic_s()
        if len(self.waiting) > self._waited:
            self._filled_s = now_s
        free = self._max_tasks - self._task_count if self._permits is None else len(self._permits_held)
        number = min(self._may_begin(), free)
        if number or not self._task_count:  # else what came now waits behind blocked lanes, too
            self._begun_s = now_s
        for _ in range(number):
            self._task_count += 1
            permit_s = self._permits_held.pop() if self._permits_held else None
            self.runtime.job(partial(self._run_task, permit_s), f"rmq-{self._topic.name}").start()

    def _may_begin(self) -> int:
        """Return the number of lanes that would find a message to start, whose slot is in no other lane."""
        if self._owned:
            return len({claim.slot for claim, _ in self.waiting} - self._busy.keys())
        return len(self.waiting) if self._columns or not self._batch else -(-self.number_waiting() // self._batch)

    def wait(self) -> None:
        """Wait until a lane is done, or until something may be claimed if there is room for it."""
        if self._changed.is_set():
            return
        if self._request is None and not self._full and self._free(self._max_tasks):
            super().wait()
        else:
            ack_s = self.held.deferred_since_s() + PIGGYBACK_S - monotonic_s()
            look_s = PIGGYBACK_S if self.claims.has_earlier else LOOK_EVERY_S
            self._changed.wait(max(0.0, min(ack_s, look_s)))
            self._changed.set()  # look now and then even if nothing has ended

    def is_interrupted(self) -> bool:
        """Return whether a wait for the next claim must end."""
        return self._changed.is_set() or super().is_interrupted()

    def return_stalled(self) -> None:
        """Release waiting messages while all lanes are blocked: as many as fit in one call, others in later rounds."""
        if self.waiting and monotonic_s() - self._begun_s > SLOW_S:
            self._held_up = True
            self.release_waiting(lambda: False)
            self._note_change()

    def finish(self) -> None:
        """Start no more messages, wait for the lanes while their outcomes are sent, and finish."""
        self.stop_starting()
        self._cancel_request()
        while self._task_count:
            self._changed.wait(LOOK_EVERY_S)
            self._changed.clear()
            if self._task_count:
                self.try_to_settle()
        super().finish()

    def join_others(self, timeout_s: float) -> None:
        """Wait for all handlers but the calling one."""
        until_s = monotonic_s() + timeout_s
        while self.calls.others_run and (left_s := until_s - monotonic_s()) > 0:
            self._ended.clear()
            self._ended.wait(left_s)

    def _leave_slow_slots(self) -> None:
        """Stop claiming from slots with a slow message, and release the messages that wait behind it.

        They cannot start in another lane, and would take the place of messages that can.
        """
        since_s = monotonic_s() - SLOW_S
        if slow := [slot for slot, began_s in self._busy.items() if began_s < since_s]:
            self.give_back(slow)
            self.planner.postpone(slow)

    def _acquire_permits(self) -> None:
        """Take a permit for each lane that may start; leave a request if there are fewer."""
        permits = self._permits
        if permits is None:
            return
        while self._task_count + len(self._permits_held) < self._max_tasks:
            if self._request is None:
                self._request = permits.request(self._note_change)
            if (began_s := self._request.began_s) is None:
                return
            self._permits_held.append(began_s)
            self._request = None

    def _release_permits(self) -> None:
        """Return the permits that no lane needs, and cancel the request for further ones."""
        if self._permits is not None and self._permits_held:
            permits, self._permits_held = self._permits_held, []
            self._cancel_request()
            for began_s in permits:
                self._permits.end(began_s)

    def _cancel_request(self) -> None:
        request, self._request = self._request, None
        if self._permits is not None and request is not None:
            self._permits.cancel(request)

    def _free(self, parallel: int | None = None) -> int:
        """Return how many messages a number of lanes may get; by default those that run or have a permit."""
        if parallel is None:
            parallel = self._max_tasks if self._permits is None else self._task_count + len(self._permits_held)
        parallel -= len(self.calls.hung)
        batch = self._batch or 1
        at_once = most = parallel * batch
        open_ = sum([len(claim.open_rows()) for claim in self.held.claims])
        if self._careful:
            most = min(parallel, 1)
        elif self._held_up:  # what would wait behind a batch that is not full would only go back again
            most, open_ = (parallel - len(self.calls.running)) * batch, self.number_waiting()
        elif (self._batch is None or (self.may_claim_ahead and not self._owned)) and self._body_bytes() < CLAIM_BYTES:
            halves = 1 if self._batch is None else 2  # lanes work on one half of the batches while the other is claimed
            within_s, each = (PREFETCH_S, MOST_PREFETCHED) if self._batch is None else (BATCHES_S, MOST_BATCHED)
            ahead = min(parallel * self.calls.prefetch.messages(halves * within_s), self.planner.nodes * halves * each)
            most = max(most, ahead // batch * batch)
            at_once = max(at_once, most // halves // batch * batch)
        return self.room_beside(max(0, min(at_once, most - open_)))

    def _body_bytes(self) -> int:
        """Return the size of the bodies that are held, in bytes."""
        return sum([sum(map(len, filter(None, claim.rows.bodies))) for claim in self.held.claims])

    @property
    def _may_not_start(self) -> bool:
        """True if nothing more may start: the listener stops, or a handler holds it back."""
        return self.setup.stopping.is_set() or self.planner.held_back_s() > 0

    @property
    def _careful(self) -> bool:
        return self._permits is not None and self._permits.one_at_a_time

    def _run_task(self, permit_s: float | None) -> None:
        """Run a lane, with a permit if handlers are limited."""
        task, last_s, permits = asyncio.current_task(), monotonic_s(), self._permits
        try:
            while part := self._take_ready():
                slots = {claim.slot for claim, _ in part} if self._owned else set[int]()
                self._begun_s = monotonic_s()
                self._busy.update(dict.fromkeys(slots, self._begun_s))
                try:
                    self.calls.handle(part)
                finally:
                    self._ended.set()
                    for slot in slots:
                        del self._busy[slot]
                self._held_up = False
                if self.waiting and self.waits_too_long(self._filled_s, self._max_tasks):
                    self.stop_starting()
                self._note_change()
                if task is not None and task.cancelling():  # the program ends
                    return
                if permits is not None and permit_s is not None:
                    if permits.over_limit:
                        self.stop_starting()
                    permit_s = permits.go_on(permit_s)
                    if permit_s is None:
                        return
                if monotonic_s() - last_s > LONGEST_TURN_S:
                    self.runtime.sleep(0)
                    last_s = monotonic_s()
        finally:
            self._task_count -= 1
            if permits is not None and permit_s is not None:
                permits.end(permit_s)
            self._note_change()

    def _take_ready(self) -> Sequence[Selection]:
        """Take the messages that a lane may start now."""
        if self._may_not_start:
            self.stop_starting()
            return ()
        ready = self.take_waiting(1 if self._careful else self._batch or 1, self._busy)
        self._waited = len(self.waiting)
        return ready

    def _note_change(self) -> None:
        if not self._changed.is_set():
            self._changed.set()
            self.planner.wake_all()


def plain_listener(listener: Listener, tasks: TaskGroup) -> Listener:
    """Return a copy of an async listener whose handler plain logic can call."""
    check_async(listener.handler)
    on_lost = listener.on_lost

    wrap: Callable[[Any, TaskGroup], Any] = wrap_delivery if listener.batch is None else wrap_deliveries
    wrap = DeliveryColumns if listener.columns else wrap

    handler = with_arguments(listener.topic, listener.handler, listener.batch is not None, listener.columns)

    def handle(argument: Any) -> object:
        call = OwnContext(handler(wrap(argument, tasks)), lambda: tasks.given_up)
        return wait(call if listener.timeout is None else _limited(call, listener.timeout_s))

    def tell_lost(delivery: PlainDelivery) -> object:
        return None if on_lost is None else on_lost(wrap_delivery(delivery, tasks))  # pyright: ignore[reportArgumentType]

    return replace(listener, handler=handle, on_lost=tell_lost)


async def _limited(call: Awaitable[R], timeout_s: float) -> R:
    """Await a call of a handler, and cancel it after `timeout_s`.

    Raises:
        TimeoutError: The call was cancelled and has ended, even if it ignored the cancellation and returned.
    """
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            result = await call
        if not limit.expired():
            return result
    except TimeoutError:
        if not limit.expired():
            raise
    raise TimeoutError(f"the handler was cancelled after its timeout of {timeout_s:g} s")
