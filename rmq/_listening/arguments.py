"""Fills the parameters of handlers by their annotations: payloads, deliveries and dependencies.

A listener provides a delivery, a list of deliveries, or columns, and with a payload class the payloads. A handler with
other parameters is refused when it is declared; otherwise each of its messages would fail and die.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Annotated, Any, Protocol, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

from rmq._model.claims import DeliveryColumns
from rmq._model.deliveries import Delivery
from rmq._model.topics import Topic
from rmq.errors import InvalidValueError

Handler: TypeAlias = Callable[..., Any]
Getter: TypeAlias = Callable[[Any], Any]
"""Returns an argument of the handler, from a delivery, a list of deliveries, or columns."""

_PLAIN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NO_PAYLOAD = "; for a payload, set Topic(..., payload=...)"
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def with_arguments(topic: Topic[Any], handler: Handler, batch: bool, columns: bool = False) -> Handler:
    """Return a function of a delivery, a list of deliveries or columns that fills the parameters of the handler.

    A handler that takes only this argument is returned unchanged.

    Raises:
        InvalidValueError: A parameter cannot be filled, or the handler has no parameter.
        ModuleNotFoundError: A parameter is a dependency, and fast-depends is not installed.
    """
    signature = _signature_of(handler)
    if signature is None:
        return handler
    parameters = [each for each in signature.parameters.values() if each.kind not in _VARIABLE]
    hints = _hints_of(topic, handler)
    depends = [each.name for each in parameters if _is_dependency(each, hints.get(each.name))]
    getters: dict[str, Getter] = {}
    needed = [each for each in parameters if each.name not in depends]
    for number, each in enumerate(needed):
        getter = _getter(
            topic, hints.get(each.name), batch, columns, first=number == 0 and each.kind is not each.KEYWORD_ONLY
        )
        if getter is not None:
            getters[each.name] = getter
        elif each.default is each.empty:
            raise _refused(topic, handler, each, hints, _argument_name(batch, columns))
    _check_one_each(topic, handler, [name for name, getter in getters.items() if getter is _unchanged])
    if depends:
        handler = import_module("fast_depends").inject(handler, cast=False, serializer_cls=None)
    elif not getters:
        return _with_rest(topic, handler, signature, batch, columns)
    elif list(getters) == [parameters[0].name] and parameters[0].kind is not parameters[0].KEYWORD_ONLY:
        return _with_one(handler, next(iter(getters.values())))
    if positional := [each.name for each in parameters if each.name in getters and each.kind not in _PLAIN]:
        raise InvalidValueError(f"parameter {positional[0]} of handler {handler!r} must not be positional-only")

    def call(argument: Any) -> Any:
        return handler(**{name: getter(argument) for name, getter in getters.items()})

    return call


def _signature_of(handler: Handler) -> inspect.Signature | None:
    """Return the signature of a handler, or `None` if it is unknown.

    The parameters of a `functools.wraps` wrapper take precedence over those of the wrapped function, if it names any.
    """
    try:
        function = handler if inspect.ismethod(handler) else inspect.unwrap(handler, stop=_names_parameters)
        return inspect.signature(function, follow_wrapped=not _names_parameters(function))
    except (TypeError, ValueError):  # a built-in function, or not callable
        return None


def _names_parameters(function: Handler) -> bool:
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    return any(each.kind not in _VARIABLE for each in parameters)


def _with_rest(
    topic: Topic[Any], handler: Handler, signature: inspect.Signature, batch: bool, columns: bool
) -> Handler:
    """Return a handler whose `*args` takes the argument; raise for a handler without parameters."""
    rule = f"on topic {topic.name} it is called with one argument: {_argument_name(batch, columns)}"
    positional = [each for each in signature.parameters.values() if each.kind not in (*_VARIABLE, each.KEYWORD_ONLY)]
    if any(each.kind is each.VAR_POSITIONAL for each in signature.parameters.values()) and not positional:
        return handler
    names = ", ".join(each.name for each in positional)
    words = f"has no parameter for the message, only {names}" if positional else "takes no argument"
    raise InvalidValueError(f"handler {name_of(handler)!r} {words}; {rule}", topic=topic.name)


def _check_one_each(topic: Topic[Any], handler: Handler, names: list[str]) -> None:
    """Raise if two parameters would get the same argument."""
    if len(names) > 1:
        raise InvalidValueError(
            f"parameters {', '.join(names)} of handler {name_of(handler)!r} would all get the same argument; on topic "
            f"{topic.name} "
            f"{'remove all but one' if topic.payload is None else f'annotate all but one as {topic.payload.__name__}'}",
            topic=topic.name,
        )


def _argument_name(batch: bool, columns: bool) -> str:
    return "DeliveryColumns" if columns else "list[Delivery]" if batch else "Delivery"


def name_of(handler: Handler) -> str:
    """Return the name of a handler for errors."""
    return getattr(handler, "__name__", None) or repr(handler)


def _with_one(handler: Handler, getter: Getter) -> Handler:
    def call(argument: Any) -> Any:
        return handler(getter(argument))

    return handler if getter is _unchanged else call


def _hints_of(topic: Topic[Any], handler: Handler) -> dict[str, Any]:
    """Return the annotations of the parameters; empty if they are unknown and the topic has no payload class."""
    function: Any = handler
    while hasattr(function, "func"):  # a partial
        function = function.func
    if not inspect.isroutine(function):
        function = getattr(cast("object", function), "__call__", None)  # noqa: B004 - its annotations are wanted
    function = inspect.unwrap(cast("Any", function))
    # names that are imported for type checkers only, and a payload class that is local to a function
    known: dict[str, Any] = {"Delivery": Delivery, "DeliveryColumns": DeliveryColumns}
    if topic.payload is not None:
        known[topic.payload.__name__] = topic.payload
    module_names = getattr(function, "__globals__", {})
    try:
        return get_type_hints(
            function,
            localns={name: each for name, each in known.items() if name not in module_names},
            include_extras=True,
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
    """Return the function that gets the argument for an annotation; `None` if there is no such argument."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        getters = (_getter(topic, each, batch, columns, first) for each in get_args(hint) if each is not type(None))
        return next((getter for getter in getters if getter is not None), None)
    if hint in (None, Any, object) or (topic.payload is None and not _is_plain_class(hint)):
        return _unchanged if first else None
    origin, args = get_origin(hint), get_args(hint)
    if _takes_lists(origin or hint) and not columns:
        item = args[0] if args else Any
        unclear = item is Any or (topic.payload is None and not _is_plain_class(item))
        if batch and (unclear or _is_ours(item, "Delivery")):
            return _unchanged
        if _is_payload(topic, item):
            return _payloads if batch else _payload if topic.collects else None
        return None
    if _is_ours(hint, "DeliveryColumns" if columns else "Delivery"):
        return _unchanged if columns or not batch else None
    return _payload if _is_payload(topic, hint) and not (batch or columns or topic.collects) else None


def _is_plain_class(hint: Any) -> bool:
    """Return whether an annotation is a class, and not a type variable or a protocol that other classes may match."""
    kind = get_origin(hint) or hint
    return isinstance(kind, type) and Protocol not in kind.__mro__


def _takes_lists(kind: Any) -> bool:
    """Return whether the annotation is `list`, or an abstract collection that `list` implements."""
    return kind is list or (getattr(kind, "__module__", "") == "collections.abc" and issubclass(list, kind))


def _is_ours(hint: Any, name: str) -> bool:
    """Return whether the annotation is RMQ's class of this name, sync or async, or its stream variant."""
    kind = get_origin(hint) or hint
    bases = cast("tuple[type, ...]", getattr(kind, "__mro__", ()))
    return any(base.__name__ == name and base.__module__.partition(".")[0] == "rmq" for base in bases)


def _is_payload(topic: Topic[Any], hint: Any) -> bool:
    return topic.payload is not None and isinstance(hint, type) and hint in topic.payload.__mro__[:-1]


def _refused(
    topic: Topic[Any], handler: Handler, parameter: inspect.Parameter, hints: dict[str, Any], argument: str
) -> InvalidValueError:
    may = [argument]
    if topic.payload is not None and argument != "DeliveryColumns":
        name = topic.payload.__name__
        may.insert(0, f"list[{name}]" if argument != "Delivery" or topic.collects else name)
    hint = hints.get(parameter.name, None if parameter.annotation is parameter.empty else parameter.annotation)
    asked = getattr(hint, "__name__", str(hint)) if not get_args(hint) else str(hint)
    has = "has no annotation" if hint is None else f"is annotated with {asked}"
    return InvalidValueError(
        f"parameter {parameter.name} of handler {name_of(handler)!r} {has}; on topic {topic.name} annotate it with "
        f"{' or '.join(may)}, or give it a default Depends(...) of fast_depends{'' if topic.payload else _NO_PAYLOAD}",
        topic=topic.name,
    )


def _unchanged(argument: Any) -> Any:
    return argument


_payload: Getter = attrgetter("decoded")
"""The payload that the listener has decoded; a list on a topic that collects."""


def _payloads(argument: Any) -> Any:
    return list(map(_payload, argument))
