"""Gives handlers of typed topics what their annotations ask for: payloads, deliveries, and what they depend on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from operator import attrgetter
from typing import Annotated, Any, TypeAlias, cast, get_args, get_origin, get_type_hints

from rmq._model.deliveries import Delivery
from rmq._model.delivery_columns import DeliveryColumns
from rmq._model.topics import Topic
from rmq.errors import InvalidValueError

Handler: TypeAlias = Callable[..., Any]
Getter: TypeAlias = Callable[[Any], Any]
"""Returns an argument, from what a listener gives: a delivery, a list of them, or columns."""

_LISTS = (list, Sequence)
_PLAIN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def with_arguments(topic: Topic[Any], handler: Handler, batch: bool, columns: bool = False) -> Handler:
    """Return a function that takes what a listener gives, and calls the handler with what it asks for.

    A handler that takes a delivery, a list of them or columns is returned as it is.

    Raises:
        InvalidValueError: A parameter asks for what is not there.
        ModuleNotFoundError: A dependency, and fast-depends is missing.
    """
    parameters = _parameters_of(handler)
    hints = _hints_of(topic, handler)
    depends = [each.name for each in parameters if _is_dependency(each, hints.get(each.name))]
    if not parameters or (topic.payload is None and not depends):
        return handler
    getters: dict[str, Getter] = {}
    wanted = [each for each in parameters if each.name not in depends]
    for number, each in enumerate(wanted):
        getter = _getter(
            topic, hints.get(each.name), batch, columns, first=number == 0 and each.kind is not each.KEYWORD_ONLY
        )
        if getter is not None:
            getters[each.name] = getter
        elif each.default is each.empty:
            raise _refused(topic, handler, each, hints, batch or columns)
    if not getters and not depends:
        return handler
    if depends:
        handler = import_module("fast_depends").inject(handler, cast=False, serializer_cls=None)
    elif len(parameters) == 1 and parameters[0].kind is not parameters[0].KEYWORD_ONLY:
        return _with_one(handler, next(iter(getters.values())))
    if odd := [each.name for each in parameters if each.name in getters and each.kind not in _PLAIN]:
        raise InvalidValueError(f"parameter {odd[0]} of handler {handler!r} must not be positional-only")

    def call(given: Any) -> Any:
        return handler(**{name: getter(given) for name, getter in getters.items()})

    return call


def _parameters_of(handler: Handler) -> list[inspect.Parameter]:
    try:
        found = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # of the interpreter itself, or not to be called at all
        return []
    return [each for each in found if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


def _with_one(handler: Handler, getter: Getter) -> Handler:
    def call(given: Any) -> Any:
        return handler(getter(given))

    return handler if getter is _given else call


def _hints_of(topic: Topic[Any], handler: Handler) -> dict[str, Any]:
    """Return what the parameters are annotated with; nothing where that is not to be known, and need not be."""
    function: Any = handler
    while hasattr(function, "func"):  # a partial
        function = function.func
    if not inspect.isroutine(function):
        function = getattr(cast("object", function), "__call__", None)  # noqa: B004 - its annotations are wanted
    function = inspect.unwrap(cast("Any", function))
    # what is imported for type checkers only, and a class that stands in the function around the handler
    known: dict[str, Any] = {"Delivery": Delivery, "DeliveryColumns": DeliveryColumns}
    if topic.payload is not None:
        known[topic.payload.__name__] = topic.payload
    there = getattr(function, "__globals__", {})
    try:
        return get_type_hints(
            function, localns={name: each for name, each in known.items() if name not in there}, include_extras=True
        )
    except NameError as error:
        if topic.payload is None:
            return {}
        raise InvalidValueError(f"the annotations of handler {handler!r} cannot be read: {error}") from None
    except (AttributeError, TypeError):
        return {}


def _is_dependency(parameter: inspect.Parameter, hint: object) -> bool:
    marks = (parameter.default, *(get_args(hint)[1:] if get_origin(hint) is Annotated else ()))
    return any(type(each).__module__.partition(".")[0] == "fast_depends" for each in marks)


def _getter(topic: Topic[Any], hint: Any, batch: bool, columns: bool, first: bool) -> Getter | None:
    """Return what fetches an argument that is annotated so; `None` where a listener has none."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if hint in (None, Any, object):
        return _given if first else None
    origin, args = get_origin(hint), get_args(hint)
    if (origin or hint) in _LISTS and not columns:
        item = args[0] if args else Any
        if batch and (item is Any or _is_ours(item, "Delivery")):
            return _given
        if _is_payload(topic, item):
            return _payload_of_each if batch else _payload if topic.collects else None
        return None
    if _is_ours(hint, "DeliveryColumns" if columns else "Delivery"):
        return _given if columns or not batch else None
    return _payload if _is_payload(topic, hint) and not (batch or columns or topic.collects) else None


def _is_ours(hint: Any, name: str) -> bool:
    """Return whether it is a class of RMQ of this name, of either side, or of streams."""
    kind = get_origin(hint) or hint
    bases = cast("tuple[type, ...]", getattr(kind, "__mro__", ()))
    return any(base.__name__ == name and base.__module__.partition(".")[0] == "rmq" for base in bases)


def _is_payload(topic: Topic[Any], hint: Any) -> bool:
    return topic.payload is not None and isinstance(hint, type) and hint in topic.payload.__mro__[:-1]


def _refused(
    topic: Topic[Any], handler: Handler, parameter: inspect.Parameter, hints: dict[str, Any], many: bool
) -> InvalidValueError:
    payload = "a payload" if topic.payload is None else topic.payload.__name__
    most = f"list[{payload}]" if many or topic.collects else payload
    hint = hints.get(parameter.name)
    asked = "nothing" if hint is None else getattr(hint, "__name__", str(hint)) if not get_args(hint) else str(hint)
    return InvalidValueError(
        f"parameter {parameter.name} of handler {getattr(handler, '__name__', handler)!r} is annotated with {asked}; "
        f"on topic {topic.name} it may be {most}, {'list[Delivery]' if many else 'Delivery'} or a dependency",
        topic=topic.name,
    )


def _given(given: Any) -> Any:
    return given


_payload: Getter = attrgetter("decoded")
"""The listener has decoded it; of a topic that collects it is a list."""


def _payload_of_each(given: Any) -> Any:
    return list(map(_payload, given))
