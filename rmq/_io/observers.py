"""Observers of sends, handlers and outcomes, the base of metrics and traces. Without observers there is no cost."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TypeVar

from rmq._io.reports import passes_over, reporter, traced
from rmq._model.deliveries import Delivery
from rmq._model.topics import Topic

log = reporter("rmq.observing")
T = TypeVar("T")


class Observer:
    """Observes a client; subclasses override the methods they need. Many threads call them, so they must be fast.

    Examples:
        >>> class Slow(Observer):
        ...     def settled(self, deliveries):
        ...         print("settled", *(delivery.text for delivery in deliveries))
        >>> client.observers.all.append(Slow())
    """

    @contextmanager
    def sending(self, topic: Topic, messages: int) -> Generator[str]:
        """Context manager around a send; `messages` is 0 if unknown. Yields the trace context to send, or ""."""
        del topic, messages
        yield ""

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Context manager around a handler; gets the handler's exception. Settled deliveries have an `outcome`."""
        del deliveries
        yield

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Called when outcomes have reached Redis. `Delivery.lost` is true if the lease was lost before."""


class Observers:
    """All observers of a client. An error in an observer is logged and does not affect sends and handlers.

    Examples:
        >>> client.observers.all.append(LogContext())
        >>> len(client.observers.all)
        1
    """

    def __init__(self) -> None:
        self.all: list[Observer] = []

    @contextmanager
    def sending(self, topic: Topic, messages: int) -> Generator[str]:
        """Context manager that calls all observers around a send; the last trace context they yield is sent."""
        with ExitStack() as stack:
            traces = [stack.enter_context(_harmless(partial(each.sending, topic, messages), "")) for each in self.all]
            yield next((trace for trace in reversed(traces) if trace and isinstance(trace, str)), "")  # pyright: ignore[reportUnnecessaryIsInstance]

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Context manager that calls all observers around a handler."""
        with ExitStack() as stack:
            for each in self.all:
                stack.enter_context(_harmless(partial(each.handling, deliveries), None))
            yield

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Notify all observers of deliveries whose outcomes have reached Redis; log the observers' errors."""
        for each in self.all:
            try:
                each.settled(deliveries)
            except BaseException as error:
                _report(error)


@contextmanager
def _harmless(watching: Callable[[], AbstractContextManager[T]], otherwise: T) -> Generator[T]:
    """Run an observer's context manager around a block; raise only errors of the block, and log the observer's."""
    entered: AbstractContextManager[T] | None = None
    value = otherwise
    try:
        watched = watching()
        value, entered = watched.__enter__(), watched
    except BaseException as error:
        _report(error)
    failure: BaseException | None = None
    try:
        yield value
    except BaseException as error:
        failure = error
        raise
    finally:
        try:
            if entered is not None and failure is None:
                entered.__exit__(None, None, None)
            elif entered is not None and failure is not None:
                entered.__exit__(*traced(failure))
        except BaseException as other:
            if other is not failure:
                _report(other)
        finally:
            failure = None  # this frame is in its traceback: they would keep each other


def _report(error: BaseException) -> None:
    if not passes_over(error):
        raise error
    log.error("an observer of sends and handlers raised an error, which is ignored", exc_info=traced(error))
