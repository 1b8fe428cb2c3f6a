"""What others may watch: sends, handlers, outcomes. Metrics and traces are built on it; unused, it costs nothing."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

from rmq.delivery import Delivery
from rmq.topics import Topic

log = logging.getLogger("rmq.observing")
T = TypeVar("T")


class Observer:
    """Watches a client; a subclass takes what it wants. Its methods are called from many threads, and must be quick."""

    @contextmanager
    def sending(self, topic: Topic, messages: int) -> Generator[str]:
        """Stand around a send; `messages` is 0 for a stream of them. Gives the trace context to go along, or ""."""
        del topic, messages
        yield ""

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Stand around a handler; its exception passes through. Deliveries nacked by itself have an `outcome`."""
        del deliveries
        yield

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Learn that outcomes have reached Redis; `lost` tells which came too late."""


class Observers:
    """All observers of a client. What goes wrong in one is logged; sends and handlers go on as without it."""

    def __init__(self) -> None:
        self.all: list[Observer] = []

    @contextmanager
    def sending(self, topic: Topic, messages: int) -> Generator[str]:
        """Let all of them stand around a send; the last context given goes along."""
        with ExitStack() as stack:
            traces = [stack.enter_context(_harmless(each.sending(topic, messages), "")) for each in self.all]
            yield next((trace for trace in reversed(traces) if trace), "")

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Let all of them stand around a handler."""
        with ExitStack() as stack:
            for each in self.all:
                stack.enter_context(_harmless(each.handling(deliveries), None))
            yield

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Tell all of them; the outcomes stand in Redis, whatever becomes of that."""
        for each in self.all:
            try:
                each.settled(deliveries)
            except Exception:
                log.exception("an observer failed")


@contextmanager
def _harmless(watched: AbstractContextManager[T], otherwise: T) -> Generator[T]:
    """Stand around something as an observer does; of exceptions only that of what is watched passes."""
    entered, value = False, otherwise
    try:
        value, entered = watched.__enter__(), True
    except Exception:
        log.exception("an observer failed")
    try:
        yield value
    except BaseException as error:
        if entered:
            _leave(watched, error)
        raise
    if entered:
        _leave(watched, None)


def _leave(watched: AbstractContextManager[object], error: BaseException | None) -> None:
    try:
        watched.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
    except Exception as other:
        if other is not error:
            log.exception("an observer failed")
