"""Runs the handler of a listener in the caller's thread, for tests: claims, calls and settles as a worker does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rmq._broker.stream_broker import join_group
from rmq._claiming.consumer import MAX_POLL, Consumer
from rmq._claiming.rate_limit import RateLimiter
from rmq._io.observers import Observers
from rmq._listening.arguments import with_arguments
from rmq._listening.handler_invoker import HandlerInvoker, ListenerSetup
from rmq._listening.listener import Listener
from rmq._model.claims import deliveries_of
from rmq._model.deliveries import Delivery
from rmq._model.handlers import refuse_unfinished
from rmq._model.topics import Topic
from rmq._transport.connections import Connections, call_slots
from rmq.errors import RedisUnavailableError


class _Unlimited(RateLimiter):
    """A rate limit without effect, since a real one would make tests wait."""

    def refresh(self) -> None:
        """Do nothing, as a limit in Redis is ignored, too."""


class InlineRunner(Consumer[Any]):
    """Claims messages of one listener, calls its handler, and settles the deliveries.

    Args:
        connections: Connections to Redis.
        topic: The registered definition of the listener's topic.
        observers: Observers of the client.
        added: The listener.
        errors: Errors of the handler are appended to it.
    """

    settle = None  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride] - see Holder

    def __init__(
        self,
        connections: Connections,
        topic: Topic[Any],
        observers: Observers,
        added: Listener,
        errors: list[BaseException],
    ) -> None:
        self._listener = _noting_errors(replace(added, topic=topic), errors)
        group, start = added.group, "all" if added.start == "new" else added.start  # the test has sent all
        source = None if group is None else join_group(connections, topic, group, start, resume_as=added.resume_as)
        super().__init__(connections, topic, source=source)
        self._planner.rate_limiter = _Unlimited(connections, replace(topic, max_rate=None))
        self._observers = observers
        stopping = connections.runtime.event()
        self._calls = HandlerInvoker(ListenerSetup(self._listener, stopping, observers=observers))

    def step(self, most: int) -> list[Delivery]:
        """Handle as many due messages as the handler takes at once, and return the settled deliveries."""
        listener = self._listener
        part = self._claimed((self,), min(listener.batch or 1, most, MAX_POLL), 0.0)
        if not part:
            return []
        self._calls.handle(part)
        settled = part
        while settled:  # a call may settle fewer
            round_ = self._claims.claim(0, settled)
            if round_.unconfirmed or not round_.settled:
                raise RedisUnavailableError(f"Redis did not confirm all outcomes of topic {self.topic.name}")
            settled = round_.unsent
            for delivery in round_.lost:
                if listener.on_lost is not None:
                    listener.on_lost(delivery)
        ended = deliveries_of(part)
        if self._observers.all:
            self._observers.settled(ended)
        return ended

    def due_ms(self) -> list[int]:
        """Return the next due times of the slots, epoch ms."""
        looks = call_slots(self._connections, self.slots, lambda slot: self._broker.look_call([slot]))
        return [due_ms for _, times in looks for due_ms in times]


def _noting_errors(listener: Listener, errors: list[BaseException]) -> Listener:
    """Wrap a listener's handler to record its errors."""
    handler: Callable[[Any], Any] = with_arguments(
        listener.topic, listener.handler, listener.batch is not None, listener.columns
    )

    def handle(argument: Any) -> None:
        try:
            if (result := handler(argument)) is not None:
                refuse_unfinished(result)
        except BaseException as error:
            errors.append(error)
            raise

    return replace(listener, handler=handle)
