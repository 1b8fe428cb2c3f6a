"""Finds the listeners of a package, so that no central list of handlers is needed.

Example: `@rmq.listener(price, threads=4)` decorates a function anywhere in `my_package`, and the module that makes the
client calls `client.add(*rmq.scan("my_package"))`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, Unpack, cast

from rmq._broker.registry import differences
from rmq._listening.listener import (
    HandlerT,
    Listener,
    ListenerOptions,
    ScheduleOptions,
    listener_decorator,
    scheduled_decorator,
)
from rmq._model.topics import Topic
from rmq.errors import InvalidValueError

MARK = "__rmq_listeners__"
"""Attribute of a decorated function: its listeners, a tuple."""


def listener(topic: Topic, **options: Unpack[ListenerOptions]) -> Callable[[HandlerT], HandlerT]:
    """Mark a function as a handler to be found by `scan`. The options are those of `RmqClient.listener`.

    Returns:
        A decorator that returns the function unchanged; several may be stacked.

    Raises:
        InvalidValueError: As `RmqClient.listener`.

    Examples:
        >>> @listener(Topic("pictures", TopicType.PRIORITY), threads=4)
        ... def draw(delivery): ...
    """
    return listener_decorator(_mark, topic, **options)


def scheduled(name: str, **options: Unpack[ScheduleOptions]) -> Callable[[HandlerT], HandlerT]:
    """Mark a function as a handler that runs by a schedule, to be found by `scan`.

    Its client puts the schedule when its listeners start. The messages are on a topic of the same name; their content
    is the name, with `catch_up` the name, a colon and the due time, and their body is the due time.

    Args:
        name: Name of the schedule and of the topic: 1 to 128 characters of `A-Z a-z 0-9 . _ -`.
        options: `cron` or `every`, and the other arguments of `Schedule`; `timeout` as for `RmqClient.listener`.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        InvalidValueError: A value breaks its rule.

    Examples:
        >>> @scheduled("close-orders", cron="30 2 * * *", tz="Europe/Berlin")
        ... def close_orders(delivery): ...
    """
    return scheduled_decorator(_mark, name, options)


def scan(package: str | ModuleType) -> list[Listener]:
    """Import a package with all its modules and return the listeners that they define.

    Args:
        package: A package or a module, or its name. Modules called `__main__` are skipped, since they run programs.

    Returns:
        The listeners of the functions at the top level of modules, for `RmqClient.add`, in the order of modules and
        without duplicates; empty if there are none.

    Raises:
        InvalidValueError: A module cannot be imported. The message names it, and its error is the cause.

    Examples:
        >>> import rmq.demo
        >>> client.add(*scan(rmq.demo))  # it marks none
    """
    listeners: dict[int, Listener] = {}
    for module in modules(package):
        for member in list(vars(module).values()):
            listeners |= {id(each): each for each in _marked(member)}
    return list(listeners.values())


def topics_in(package: str | ModuleType) -> list[Topic]:
    """Return the topics that a module, or the modules of a package, define at their top level, sorted by name.

    Finds `Topic` objects, also inside lists and dicts, and the topics of listeners, including those of clients.

    Raises:
        InvalidValueError: A module cannot be imported, there is no topic, or one is defined twice with different
            settings.
    """
    found: dict[str, Topic] = {}
    for module in modules(package):
        for topic in _topics_of(list(vars(module).values())):
            known = found.setdefault(topic.name, topic)
            if known != topic:
                words = "; ".join(each.worded() for each in differences(known, topic))
                raise InvalidValueError(f"{package} defines topic {topic.name} twice, with different settings: {words}")
    if not found:
        raise InvalidValueError(f"{package} defines neither a Topic nor a listener at the top level of a module")
    return [found[each] for each in sorted(found)]


def _mark(made: Listener) -> None:
    try:
        setattr(made.handler, MARK, (*_marked(made.handler), made))
    except AttributeError:
        raise InvalidValueError(f"{made.handler!r} cannot be marked as a listener; wrap it in a function") from None


def modules(package: str | ModuleType) -> Iterator[ModuleType]:
    """Import a module, or a package with all its modules but those called `__main__`; raises as `scan`."""
    module = package if isinstance(package, ModuleType) else _imported(package)
    yield module
    for entry in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{module.__name__}."):
        if not entry.name.endswith(".__main__"):
            yield from modules(entry.name)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise InvalidValueError(f"module {name} cannot be imported: {type(error).__name__}: {error}") from error


def _marked(member: object) -> tuple[Listener, ...]:
    try:
        marked = vars(member).get(MARK, ())  # not getattr: some objects return a value for any attribute
    except TypeError:  # without a __dict__
        return ()
    return cast("tuple[Listener, ...]", marked) if isinstance(marked, tuple) else ()


def _topics_of(values: Any) -> Iterator[Topic]:
    for value in values:
        if isinstance(value, Topic):
            yield value
        elif type(value) in (list, tuple, set, frozenset, dict):
            inner = cast("Iterable[object]", value.values() if isinstance(value, dict) else value)
            yield from (each for each in inner if isinstance(each, Topic))
        else:
            yield from (each.topic for each in _listeners_of(value))


def _listeners_of(value: Any) -> list[Listener]:
    """Return the listeners of a decorated function, of a client, or of an extension of RMQ; else an empty list."""
    own = getattr(value, "__dict__", {})
    found = own.get(MARK, ())
    if type(value).__module__.partition(".")[0] == "rmq":
        found = own.get("_listeners", ())
        found = getattr(found, "added", found)
    if not isinstance(found, list | tuple):
        return []
    return [each for each in cast("Iterable[object]", found) if isinstance(each, Listener)]
