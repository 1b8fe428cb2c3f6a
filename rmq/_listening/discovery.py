"""Finds the listeners of a package, so that handlers stand where they belong and no list has to name them.

Example: `@rmq.listener(price, threads=4)` above a function somewhere in `my_package`, and in the module that makes the
client `client.add(*rmq.scan("my_package"))`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TypeVar, cast

from rmq.adaptive import Adaptive
from rmq.delivery import Delivery
from rmq.errors import InvalidValueError
from rmq.topics import Topic
from rmq.worker import Handler, Listener

HandlerT = TypeVar("HandlerT", bound=Handler)

MARK = "__rmq_listeners__"
"""Attribute of a decorated function: its listeners, a tuple."""


def listener(
    topic: Topic,
    *,
    batch: int | None = None,
    threads: int = 1,
    on_lost: Callable[[Delivery], None] | None = None,
    group: str | None = None,
    start: str = "new",
    adaptive: Adaptive | None = None,
    weight: float = 1.0,
) -> Callable[[HandlerT], HandlerT]:
    """Mark a function as a handler, for `scan` to find; `RmqClient.listener` without a client.

    Args:
        topic: What to consume.
        batch: As for `RmqClient.listener`.
        threads: As for `RmqClient.listener`.
        on_lost: As for `RmqClient.listener`.
        group: As for `RmqClient.listener`.
        start: As for `RmqClient.listener`.
        adaptive: As for `RmqClient.listener`.
        weight: As for `RmqClient.listener`.

    Returns:
        A decorator that returns the function itself; several may be stacked.

    Raises:
        InvalidValueError: `batch`, `threads` or `weight` out of range.
    """

    def decorate(handler: HandlerT) -> HandlerT:
        made = Listener(topic, handler, batch, threads, on_lost, group, start, adaptive, weight)
        try:
            setattr(handler, MARK, (*_marked(handler), made))
        except AttributeError:
            raise InvalidValueError(f"{handler!r} cannot be marked as a listener; wrap it in a function") from None
        return handler

    # a wrong value shows in the line where it stands
    Listener(topic, decorate, batch, threads, None, group, start, adaptive, weight)
    return decorate


def scan(package: str | ModuleType) -> list[Listener]:
    """Import a package with all its modules and return the listeners that stand in them.

    Args:
        package: A package or a module, or its name. Modules called `__main__` are left out: they run programs.

    Returns:
        The functions marked with `listener` at the top level of a module, for `RmqClient.add`; in order of modules,
        each once however often it is imported elsewhere; none where there are none.

    Raises:
        InvalidValueError: A module cannot be imported; the message names it, and its error is the cause.
    """
    found: dict[int, Listener] = {}
    for module in _modules(package if isinstance(package, ModuleType) else _imported(package)):
        for member in list(vars(module).values()):
            found |= {id(each): each for each in _marked(member)}
    return list(found.values())


def _modules(module: ModuleType) -> Iterator[ModuleType]:
    yield module
    for entry in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{module.__name__}."):
        if not entry.name.endswith(".__main__"):
            yield from _modules(_imported(entry.name))


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise InvalidValueError(f"module {name} cannot be imported: {type(error).__name__}: {error}") from error


def _marked(member: object) -> tuple[Listener, ...]:
    try:
        marked = vars(member).get(MARK, ())  # not getattr: an object may have any attribute one asks for
    except TypeError:  # without a __dict__
        return ()
    return cast("tuple[Listener, ...]", marked) if isinstance(marked, tuple) else ()
