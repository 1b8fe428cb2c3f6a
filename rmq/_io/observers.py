"""Observers of sends, handlers and outcomes: metrics, traces and middleware. Without observers there is no cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import ParamSpec, TypeAlias, TypeVar

from rmq._io.reports import passes_over, reporter, traced
from rmq._model.deliveries import Delivery
from rmq._model.records import is_context
from rmq._model.topics import Topic
from rmq.errors import InvalidValueError

log = reporter("rmq.observing")
P = ParamSpec("P")
T = TypeVar("T")


Hook: TypeAlias = Awaitable[object] | None
"""What a hook returns: nothing, or with a client of `rmq.aio` what is to be awaited, as a coroutine function does."""


class Observer:
    """Observes a client, or acts around its sends and handlers, as middleware does. Many threads call it.

    Subclasses override the hooks they need (`before_send`, `after_send`, `failed_send`, `before_handler`,
    `after_handler`, `failed_handler`), or `sending` and `handling`, context managers in which the hooks are called. A
    handler runs in the context (`contextvars`) of its hooks. Observers begin in the order of `client.observers.all`,
    and end in reverse order. With a client of `rmq.aio`, hooks may be coroutine functions.

    Attributes:
        essential: Whether its errors count. By default they are logged, and sends and handlers go on. An error of an
            essential observer counts as an error of the send or handler. If it is raised before a send, the messages
            are not sent; before a handler, the handler is not called and its messages are retried; after a handler, its
            messages are retried, too. If `handling` of an essential observer swallows the error of a handler, the
            handler's messages are acked.

    Examples:
        >>> class Transaction(Observer):
        ...     essential = True
        ...
        ...     def before_handler(self, deliveries):
        ...         print("begin")
        ...
        ...     def after_handler(self, deliveries):
        ...         print("commit", *(delivery.text for delivery in deliveries))
        >>> client.observers.all.append(Transaction())
    """

    essential: bool = False

    @contextmanager
    def sending(self, topic: Topic, messages: int) -> Generator[str]:
        """Context manager around a send. Yields the trace context to send, or "".

        `messages` is the number of messages, 0 if it is unknown.
        """
        del topic, messages
        yield ""

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Context manager around a handler; the handler's exception is raised at its `yield`.

        Deliveries that are settled have an `outcome`.
        """
        del deliveries
        yield

    def before_send(self, topic: Topic, messages: int) -> Hook:
        """Called before a send; `messages` is the number of messages, 0 if it is unknown."""

    def after_send(self, topic: Topic, messages: int) -> Hook:
        """Called after a send that raised no error."""

    def failed_send(self, topic: Topic, messages: int, error: BaseException) -> Hook:
        """Called after a send that raised an error."""

    def before_handler(self, deliveries: Sequence[Delivery]) -> Hook:
        """Called before a handler."""

    def after_handler(self, deliveries: Sequence[Delivery]) -> Hook:
        """Called after a handler that raised no error, before its messages are acked."""

    def failed_handler(self, deliveries: Sequence[Delivery], error: BaseException) -> Hook:
        """Called after a handler that raised an error. The hook may settle deliveries; the others are retried."""

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Called when outcomes have reached Redis. `Delivery.lost` is true if the lease was lost before."""


class Observers:
    """All observers of a client.

    Args:
        finish: Runs the coroutine of a hook until it ends; by default such hooks are refused.

    Attributes:
        all: The observers, in the order in which they begin; append yours to this list.

    Examples:
        >>> client.observers.all.append(LogContext())
        >>> len(client.observers.all)
        1
    """

    def __init__(self, finish: Callable[[Awaitable[object]], object] | None = None) -> None:
        self.all: list[Observer] = []
        self._finish = finish or _refuse

    @contextmanager
    def sending(self, topic: Topic, messages: int) -> Generator[str]:
        """Context manager that calls all observers around a send; the last trace context they yield is sent.

        An error of the send is raised even if an observer swallows it.
        """
        with self._all(partial(self._sending, topic=topic, messages=messages), may_swallow=False) as traces:
            yield next(filter(_is_sent, reversed(traces)), "")

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Context manager that calls all observers around a handler."""
        with self._all(partial(self._handling, deliveries=deliveries), may_swallow=True):
            yield

    @contextmanager
    def _all(self, around: Callable[[Observer], AbstractContextManager[T]], *, may_swallow: bool) -> Generator[list[T]]:
        """Enter the context managers of all observers.

        Args:
            around: Returns the context manager of an observer.
            may_swallow: Whether an observer may swallow the error of the block. What an observer raises before the
                block is raised in any case: nothing has been sent or handled.
        """
        failure: BaseException | None = None
        begun = False
        try:
            with ExitStack() as stack:
                try:
                    values = [stack.enter_context(around(each)) for each in self.all]
                    begun = True
                    yield values
                except BaseException as error:
                    failure = error
                    raise
            if failure is not None and not (begun and may_swallow):
                raise failure
        finally:
            failure = None  # this frame is in its traceback: they would keep each other

    def _sending(self, observer: Observer, topic: Topic, messages: int) -> AbstractContextManager[str]:
        hooks = observer.before_send, observer.after_send, observer.failed_send
        return self._around(observer, observer.sending, hooks, "", topic, messages)

    def _handling(self, observer: Observer, deliveries: Sequence[Delivery]) -> AbstractContextManager[None]:
        hooks = observer.before_handler, observer.after_handler, observer.failed_handler
        return self._around(observer, observer.handling, hooks, None, deliveries)

    def _around(
        self,
        observer: Observer,
        watching: Callable[P, AbstractContextManager[T]],
        hooks: tuple[Callable[..., Hook], ...],
        otherwise: T,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AbstractContextManager[T]:
        """Return a context manager that runs an observer's context manager, and within it its hooks."""
        before, after, failed = hooks

        @contextmanager
        def watched() -> Generator[T]:
            with watching(*args, **kwargs) as value:
                self._call(before, *args)
                try:
                    yield value
                except BaseException as error:
                    self._call(failed, *args, error)
                    raise
                self._call(after, *args)

        return watched() if observer.essential else _harmless(watched, otherwise)

    def _call(self, hook: Callable[..., Hook], *args: object) -> None:
        if isawaitable(awaitable := hook(*args)):
            self._finish(awaitable)

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Notify all observers of deliveries whose outcomes have reached Redis; log the observers' errors."""
        for each in self.all:
            try:
                each.settled(deliveries)
            except BaseException as error:
                _report(error)


def _is_sent(trace: str) -> bool:
    """Return whether a trace context is sent; log one that cannot be."""
    if not isinstance(trace, str) or not is_context(trace):  # pyright: ignore[reportUnnecessaryIsInstance]
        log.error("the trace context %.200r is not sent; an observer must yield up to 2,048 ASCII characters", trace)
        return False
    return bool(trace)


def _refuse(awaitable: Awaitable[object]) -> None:
    if iscoroutine(awaitable):
        awaitable.close()
    raise InvalidValueError("a hook of an observer is a coroutine function; only a client of rmq.aio can await it")


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
