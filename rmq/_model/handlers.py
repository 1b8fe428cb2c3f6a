"""Checks of functions that are to be handlers, and of the values that handlers return. Pure."""

from __future__ import annotations

import functools
import inspect
from typing import Any, cast

from rmq.errors import InvalidValueError

ASYNC = "an async function"
GENERATOR = "a generator function"
ASYNC_GENERATOR = "an async generator function"


def kind_of(handler: object) -> str:
    """Return `ASYNC`, `GENERATOR` or `ASYNC_GENERATOR` for a function that does nothing when called, else "".

    Looks through `functools.partial`, methods, and objects with a `__call__` of that kind.
    """
    function = _innermost(handler)
    for each in (function, _innermost(getattr(type(function), "__call__", None))):  # noqa: B004
        if inspect.iscoroutinefunction(each):
            return ASYNC
        if inspect.isasyncgenfunction(each):
            return ASYNC_GENERATOR
        if inspect.isgeneratorfunction(each):
            return GENERATOR
    return ""


def check_plain(handler: object, name: str = "handler") -> None:
    """Raise `InvalidValueError` for functions that threads cannot run: async and generator functions."""
    if not callable(handler):
        raise InvalidValueError(f"{name} is {handler!r}; it must be a function that takes a delivery")
    if kind := kind_of(handler):
        instead = "use rmq.aio.RmqClient for async functions" if kind == ASYNC else "return instead of yield"
        raise InvalidValueError(f"{name} {handler!r} is {kind}: calling it does nothing; {instead}")


def check_takes_one(function: Any, name: str, given: str) -> None:
    """Raise `InvalidValueError` for a function that cannot be called with one argument, described by `given`."""
    try:
        inspect.signature(function, follow_wrapped=False).bind(None)
    except TypeError as error:
        raise InvalidValueError(f"{name} {function!r} must take one argument, {given}: {error}") from None
    except ValueError:  # of the interpreter itself: its parameters are not to be known
        pass


def check_async(handler: object) -> None:
    """Raise `InvalidValueError` unless the handler is an async function."""
    kind = kind_of(handler)
    if kind in (GENERATOR, ASYNC_GENERATOR):
        raise InvalidValueError(f"{handler!r} is {kind}, not an async function: calling it does nothing")
    if not kind:
        raise InvalidValueError(f"{handler!r} is not an async function; use rmq.RmqClient for handlers in threads")


def refuse_unfinished(result: object) -> None:
    """Raise if a handler returned an awaitable or a generator instead of doing the work; close what it returned."""
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        cast("Any", result).close()
    elif not inspect.isasyncgen(result) and not inspect.isawaitable(result):
        return
    raise InvalidValueError(
        f"the function has returned a {type(result).__name__}, which RMQ does not run: a handler or callback must do "
        "its work before it returns"
    )


def _innermost(function: object) -> object:
    """Return the function behind partials, partial methods and bound methods."""
    while True:
        if isinstance(function, functools.partial | functools.partialmethod):
            function = cast("Any", function).func
        elif inspect.ismethod(function):
            function = function.__func__
        else:
            return function
