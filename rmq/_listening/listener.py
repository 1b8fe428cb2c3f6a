"""The definition of a listener: its topic, handler and options; and the listeners of a package.

No central list of handlers is needed: `@rmq.listener(price, threads=4)` decorates a function anywhere in `my_package`,
and the module that makes the client calls `client.add(*rmq.scan("my_package"))`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from math import inf
from types import ModuleType
from typing import Any, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast, overload

from rmq._listening.adaptive_limit import Adaptive
from rmq._listening.arguments import name_of, with_arguments
from rmq._model.claims import DeliveryColumns
from rmq._model.deliveries import Delivery
from rmq._model.display import brief
from rmq._model.entries import check_group
from rmq._model.handlers import check_plain, check_takes_one
from rmq._model.settings import check_flag, is_number
from rmq._model.times import Duration, Instant, duration_ms
from rmq._model.topics import Topic, TopicType
from rmq._model.typed import PayloadT
from rmq._registry.registry import differences
from rmq._schedules.schedule import SCHEDULED, Schedule
from rmq.errors import InvalidValueError

Handler = Callable[..., Any]
"""Takes a `Delivery`, with `batch=N` a list of up to N deliveries, and with `columns=True` a `DeliveryColumns`; on a
topic with a payload class also payloads, as its annotations say."""

P = ParamSpec("P")
R = TypeVar("R")

HandlerT = TypeVar("HandlerT", bound=Handler)


class HandlerDecorator(Protocol[PayloadT]):
    """The type of a decorator of handlers. It tells type checkers which types a handler's first parameter may have.

    Examples:
        >>> decorate = client.listener(Topic("images", TopicType.RANGE_MERGE))
        >>> @decorate
        ... def draw(delivery: Delivery) -> None:
        ...     print(delivery.text)
    """

    @overload
    def __call__(
        self, handler: Callable[Concatenate[Delivery[PayloadT], P], R], /
    ) -> Callable[Concatenate[Delivery[PayloadT], P], R]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[list[Delivery[PayloadT]], P], R], /
    ) -> Callable[Concatenate[list[Delivery[PayloadT]], P], R]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[DeliveryColumns, P], R], /
    ) -> Callable[Concatenate[DeliveryColumns, P], R]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[list[PayloadT], P], R], /
    ) -> Callable[Concatenate[list[PayloadT], P], R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[PayloadT, P], R], /) -> Callable[Concatenate[PayloadT, P], R]: ...


class SharedOptions(TypedDict, total=False):
    """The options that listeners of threads and of tasks have in common."""

    batch: int | None
    columns: bool
    group: str | None
    start: str
    adaptive: Adaptive | None
    weight: float
    resume_as: str | None
    shared: bool
    timeout: Duration | None


class ListenerOptions(SharedOptions, total=False):
    """The options of a listener. `RmqClient.listener` explains each option.

    Examples:
        >>> quick: ListenerOptions = {"batch": 500, "threads": 2}
        >>> @client.listener(Topic("pictures", TopicType.PRIORITY), **quick)
        ... def draw(deliveries): ...
    """

    threads: int
    on_lost: Callable[[Delivery], None] | None


@dataclass(frozen=True, slots=True)
class Listener:
    """A handler of a topic with its options, which `RmqClient.listener` explains.

    Raises:
        InvalidValueError: An option is invalid, or the handler has parameters that cannot be filled.

    Examples:
        >>> scan("rmq.demo")
        []
    """

    topic: Topic
    handler: Handler
    _: KW_ONLY
    batch: int | None = None
    columns: bool = False
    threads: int = 1
    on_lost: Callable[[Delivery], None] | None = None
    group: str | None = None
    start: str = "new"
    adaptive: Adaptive | None = None
    weight: float = 1.0
    resume_as: str | None = None
    shared: bool = False
    timeout: Duration | None = None
    schedule: Schedule | None = None
    """The schedule that the client puts when the listener starts; see `rmq.scheduled`."""

    def __post_init__(self) -> None:
        if not isinstance(self.topic, Topic):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(
                f"a listener takes a Topic, not {self.topic!r:.100}; write @client.listener(TOPIC) above a handler"
            )
        if not is_number(self.weight) or not 0 < self.weight < float("inf"):
            raise InvalidValueError(f"weight is {brief(self.weight)}; it must be a finite number above 0")
        check_flag("columns", self.columns)
        if self.adaptive is not None and not isinstance(self.adaptive, Adaptive):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"adaptive is {self.adaptive!r}; it must be an rmq.Adaptive, or None")
        if self.batch is not None and (type(self.batch) is not int or not 1 <= self.batch <= 10_000):
            raise InvalidValueError(f"batch is {self.batch!r}; it must be a whole number from 1 to 10,000, or None")
        if self.columns and self.batch is None:
            raise InvalidValueError(
                "columns is True and batch is None; columns need batch=, the maximum number of rows"
            )
        if self.columns and self.topic.type is TopicType.STREAM:
            raise InvalidValueError(f"columns is True; STREAM topics such as {self.topic.name} do not support columns")
        if type(self.threads) is not int or not 1 <= self.threads <= 1_000:
            raise InvalidValueError(f"threads is {self.threads!r}; it must be a whole number from 1 to 1,000")
        if self.timeout is not None and duration_ms(self.timeout, "timeout") < 1:
            raise InvalidValueError(f"timeout is {self.timeout!r}; it must be 1 ms or more, or None")
        if self.on_lost is not None:
            check_plain(self.on_lost, "on_lost")
            check_takes_one(self.on_lost, "on_lost", "a Delivery")
        with_arguments(self.topic, self.handler, self.batch is not None, self.columns)  # raises for wrong parameters
        check_group(self.topic, self.group, self.start, self.resume_as)

    @property
    def timeout_s(self) -> float:
        """Seconds that a call of the handler may run; infinite without `timeout`."""
        return inf if self.timeout is None else duration_ms(self.timeout, "timeout") / 1000

    @property
    def ownership_name(self) -> str:
        """The name under which the slots are owned. On a stream topic each group owns slots separately."""
        return self.topic.name if self.group is None else f"{self.topic.name}@{self.group}"


def check_shared(added: Sequence[Listener], *listeners: Listener) -> None:
    """Raise for a second listener of the same topic and group in one client, unless both are `shared`.

    Raises:
        InvalidValueError: Two listeners would each get a part of the messages.
    """
    known = {listener.ownership_name: listener for listener in added}
    for listener in listeners:
        other = known.setdefault(listener.ownership_name, listener)
        if other is not listener and not (other.shared and listener.shared):
            what = f"topic {listener.topic.name}" + ("" if listener.group is None else f", group {listener.group}")
            raise InvalidValueError(
                f"this client has two listeners of {what}: {name_of(other.handler)} and {name_of(listener.handler)}. "
                "Each message would go to one of them, at random. Use one handler, raise threads= for more calls of it "
                "in parallel, or set shared=True on both",
                topic=listener.topic.name,
            )


def listener_decorator(
    take: Callable[[Listener], None], topic: Topic, **options: Unpack[ListenerOptions]
) -> Callable[[HandlerT], HandlerT]:
    """Return a decorator that makes a listener of a handler and passes it to `take`. Checks the options at once."""
    listener = Listener(topic, _no_handler, **options)

    def decorate(handler: HandlerT) -> HandlerT:
        take(replace(listener, handler=handler))
        return handler

    return decorate


def _no_handler(delivery: object) -> None:
    """Placeholder for the handler until one is decorated."""


class ScheduleOptions(TypedDict, total=False):
    """The options of a handler that runs on a schedule. `Schedule` and `RmqClient.listener` explain each option.

    Examples:
        >>> nightly: ScheduleOptions = {"cron": "30 2 * * *", "tz": "Europe/Berlin"}
        >>> @client.scheduled("close-orders", **nightly)
        ... def close_orders(delivery): ...
    """

    cron: str
    every: Duration
    tz: str
    catch_up: bool
    start: Instant | None
    until: Instant | None
    version: int | None
    timeout: Duration | None


def scheduled_decorator(
    take: Callable[[Listener], None], name: str, options: ScheduleOptions
) -> Callable[[HandlerT], HandlerT]:
    """Return a decorator that makes a listener and a schedule of a handler, on a topic of the schedule's name.

    Raises:
        InvalidValueError: An option breaks its rule, or the name is not one of a topic.
    """
    rules: dict[str, Any] = {**options}
    timeout = rules.pop("timeout", None)
    topic = Topic(name, TopicType.FIXED_TIME)
    content = f"{name}:{SCHEDULED}" if rules.get("catch_up") else name
    schedule = Schedule(name, topic, content, body=SCHEDULED, **rules)

    def decorate(handler: HandlerT) -> HandlerT:
        take(Listener(topic, handler, timeout=timeout, schedule=schedule))
        return handler

    return decorate


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
    """Mark a function as a handler that runs on a schedule, to be found by `scan`.

    The client to which the listener is added stores the schedule when its listeners start. The messages are on a topic
    of the same name. Their content is the name; with `catch_up` it is the name, a colon and the due time. Their body is
    the due time, in ISO 8601.

    Args:
        name: Name of the schedule and of the topic: 1 to 128 characters of `A-Z a-z 0-9 . _ -`.
        options: `cron` or `every`, `tz`, `catch_up`, `start`, `until` and `version`, as for `Schedule`; `timeout` as
            for `RmqClient.listener`.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        InvalidValueError: `name` or an option is invalid, `cron` and `every` are both given or both missing, or the
            handler has parameters that cannot be filled.

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
        raise InvalidValueError(f"{made.handler!r} takes no attribute for a listener; wrap it in a function") from None


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
