"""Base of the async classes: they have the methods, signatures and docstrings of a plain class, as coroutines."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from rmq._model.topics import Topic
from rmq.aio.greenlets import TaskGroup

P = ParamSpec("P")
T = TypeVar("T")
PlainT = TypeVar("PlainT")

_END = object()


class AsyncProxy(Generic[PlainT]):
    """An async object: a plain object, and the tasks that run its methods.

    Args:
        plain: The plain object.
        tasks: Runs its methods.
    """

    def __init__(self, plain: PlainT, tasks: TaskGroup) -> None:
        self._plain = plain
        self._tasks = tasks

    async def _run(self, method: Callable[Concatenate[PlainT, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._tasks.run(method, self._plain, *args, **kwargs)


class Closing:
    """Base class of objects that close at the end of an `async with` block."""

    if TYPE_CHECKING:
        close: Any

    async def _open(self) -> object:
        """Open the object at the beginning of the block."""

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class HasTopic(Protocol):
    """A plain object that works on one topic."""

    topic: Topic


OfTopicT = TypeVar("OfTopicT", bound=HasTopic)


class TopicProxy(AsyncProxy[OfTopicT]):
    """An async object that works on one topic."""

    @property
    def topic(self) -> Topic:
        """The registered definition of the topic."""
        return self._plain.topic


def signature_of(
    method: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Return a decorator that gives a method the parameters of another one, also for type checkers and `help`.

    A call with other arguments raises `TypeError` at once, not when the other method is called.
    """
    signature = inspect.signature(method)

    def decorate(function: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> T:
            signature.bind(*args, **kwargs)
            return function(*args, **kwargs)

        checked.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        return checked

    return decorate


class _ProxyMethod(Generic[P, T]):
    """A method of a plain object, as a descriptor of the async class."""

    def __init__(self, method: Callable[Concatenate[Any, P], T]) -> None:
        self.method = method
        self.__doc__, self.__wrapped__ = method.__doc__, method


class async_method(_ProxyMethod[P, T]):
    """Return the async form of a method, which the object's `_run` runs.

    If cancelled, it ends at its current wait; a request that was sent may have been carried out.

    Args:
        method: The plain method.
        wrap: Converts the result of the method; by default it is returned unchanged.
    """

    @overload
    def __init__(self, method: Callable[Concatenate[Any, P], T]) -> None: ...
    @overload
    def __init__(
        self, method: Callable[Concatenate[Any, P], PlainT], wrap: Callable[[PlainT, TaskGroup], T]
    ) -> None: ...
    def __init__(
        self, method: Callable[Concatenate[Any, P], Any], wrap: Callable[[Any, TaskGroup], T] | None = None
    ) -> None:
        super().__init__(method)
        self._wrap = wrap

    @overload
    def __get__(self, instance: None, owner: Any) -> async_method[P, T]: ...
    @overload
    def __get__(self, instance: object, owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        if self._wrap is None:
            return functools.partial(instance._run, self.method)
        return functools.partial(instance._run_wrapped, self._wrap, self.method)


class shielded_method(_ProxyMethod[P, T]):
    """Return the async form of a method that runs to its end even if cancelled."""

    @overload
    def __get__(self, instance: None, owner: Any) -> shielded_method[P, T]: ...
    @overload
    def __get__(self, instance: object, owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        tasks, plain = instance._tasks, instance._plain

        def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
            return tasks.finish(functools.partial(self.method, plain, *args, **kwargs))

        return call


class async_iterator(_ProxyMethod[P, Iterator[T]]):
    """Return the async form of a method that returns an iterator, for `async for`."""

    @overload
    def __get__(self, instance: None, owner: Any) -> async_iterator[P, T]: ...
    @overload
    def __get__(self, instance: object, owner: Any) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        tasks, plain = instance._tasks, instance._plain

        async def entries(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
            async for entry in iterate(tasks, await tasks.run(self.method, plain, *args, **kwargs)):
                yield entry

        return entries


async def iterate(tasks: TaskGroup, entries: Iterator[T]) -> AsyncIterator[T]:
    """Yield the elements of a plain iterator."""
    try:
        while (entry := await tasks.run(_next, entries)) is not _END:
            yield entry  # pyright: ignore[reportReturnType]
    finally:
        if (close := getattr(entries, "close", None)) is not None:
            close()


def _next(entries: Iterator[T]) -> T | object:
    return next(entries, _END)
