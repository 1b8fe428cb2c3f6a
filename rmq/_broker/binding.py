"""Binds keys and arguments to a script by name. Only the header of the script has their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar, cast

from rmq._broker.keys import group_keys, slot_keys
from rmq._io.wire import Argument
from rmq._model.scores import ages_for
from rmq._model.topics import Topic
from rmq._transport.call import NO_REFUSALS, PUBLISH, Call, Refusals
from rmq._transport.script_library import Names, default_scripts

T = TypeVar("T")

SAFE_AGAIN = "Repeating it is safe"
"""Value of `durable` for a script whose call may be repeated by its caller."""

FILLED_IN = {"publish": PUBLISH}
"""Arguments that callers do not give: `Connections` fills them in."""


class BoundScript:
    """A script that is called by the names in its header. The header is read at the first call.

    Args:
        name: Name of the script.
        refusals: Code of an error reply -> function that returns the caller's error, for the script's own codes.
        repeatable: Whether a call may be sent again after its reply was lost.
        durable: See `Call`. All paths of a durable script write something: see docs/internals/contract.md.
    """

    def __init__(
        self, name: str, refusals: Refusals = NO_REFUSALS, *, repeatable: bool = True, durable: str = ""
    ) -> None:
        self.name = name
        self._refusals = refusals
        self._getters: dict[tuple[bool, bool], Callable[[Any], tuple[str, ...]]] = {}
        self.repeatable = repeatable
        self.durable = durable

    @cached_property
    def args(self) -> Callable[..., list[Argument]]:
        """Function that returns the arguments in the script's order; takes all of them by name, the tail as a sequence.

        Raises `TypeError` for a missing name, and for one that is not in the header.
        """
        return self.args_with()

    def args_with(self, **known: Argument) -> Callable[..., list[Argument]]:
        """Return `args` as a function of the remaining names: the values of the others are fixed.

        Compiles the function: do it once, not per call. Raises `TypeError` for a name that is not in the header.
        """
        return _binder(self.name, default_scripts()[self.name].args, "[{}]", known)

    @cached_property
    def names(self) -> Callable[..., tuple[str, ...]]:
        """Function that returns the keys in the script's order; like `args`, with the optional keys included."""
        return _binder(self.name, self._keys, "({},)", {})

    @cached_property
    def keys(self) -> Callable[[Any], tuple[str, ...]]:
        """Function that returns the keys in the script's order from attributes of an object; not the optional ones."""
        return _getter(self._keys.required)

    def _names_of(self, topic: Topic) -> tuple[str, ...]:
        """Return the names of the keys, with the optional ones of topics that keep times of sending, or merge."""
        born, merges = options_of(topic)
        return self._keys.required + tuple(name for name in self._keys.optional if (born if name == "born" else merges))

    @cached_property
    def _keys(self) -> Names:
        return default_scripts()[self.name].keys

    def keys_of(self, topic: Topic, slot: int) -> tuple[str, ...]:
        """Return the keys of a slot of a topic, with the optional ones that such a topic has."""
        options = options_of(topic)
        getter = self._getters.get(options)
        if getter is None:
            getter = self._getters[options] = _getter(self._names_of(topic))
        return getter(slot_keys(topic.name, slot))

    def keys_with(self, topic: Topic, slot: int, **others: str) -> tuple[str, ...]:
        """Return the keys of a slot like `keys_of`, with some of them replaced."""
        names, keys = self._names_of(topic), slot_keys(topic.name, slot)
        if unknown := others.keys() - set(names):
            raise TypeError(f"script {self.name} has no keys {', '.join(sorted(unknown))}")
        return tuple(others.get(name) or getattr(keys, name) for name in names)

    def call(
        self,
        topic: Topic,
        slot: int,
        parse: Callable[[Any], T],
        args: Sequence[Argument],
        *,
        group: str | None = None,
        durable: bool = True,
        **others: str,
    ) -> Call[T]:
        """Return a call of the script on a slot of a topic.

        Args:
            topic: The definition.
            slot: The slot.
            parse: Function that parses the reply.
            args: The result of `args`.
            group: Use the keys of this group of a stream topic instead of the slot's.
            durable: False if no caller relies on this call of a durable script.
            others: Keys, by name, that replace those of the slot.
        """
        if group is not None:
            keys = self.keys(group_keys(topic.name, slot, group))
        else:
            keys = self.keys_with(topic, slot, **others) if others else self.keys_of(topic, slot)
        confirmed = self.durable if durable else ""
        return Call(self.name, keys, args, parse, self.repeatable, topic.name, slot, confirmed, self._refusals)


def options_of(topic: Topic) -> tuple[bool, bool]:
    """Return whether the slots of a topic have the key with times of sending, and the keys for merging."""
    return topic.ttl is not None and not topic.type.timed, topic.merge is not None


def ages_of(topic: Topic) -> dict[str, Argument]:
    """Return the arguments `scale` and `unit_ms` of scripts that compute store scores."""
    ages = ages_for(topic.max_priority)
    return {"scale": ages.scale, "unit_ms": ages.unit_ms}


def _binder(script: str, names: Names, brackets: str, known: Mapping[str, Argument]) -> Callable[..., Any]:
    """Return a function that takes each name as a keyword and returns the values in order.

    Args:
        script: Name of the script.
        names: Its parameters.
        brackets: Brackets around the values.
        known: Values of names that are fixed, and so are not parameters of the function.

    Raises:
        TypeError: A fixed name is not in `names`.
    """
    all_ = names.required + names.optional
    filled: Mapping[str, Argument] = {**{name: FILLED_IN[name] for name in all_ if name in FILLED_IN}, **known}
    if unknown := filled.keys() - set(all_):
        raise TypeError(f"script {script} has no arguments {', '.join(sorted(unknown))}")
    parameters = [name for name in all_ if name not in filled]
    values = [repr(filled[name]) if name in filled else name for name in all_]
    if names.tail is not None:
        parameters.append(names.tail)
        values.append(f"*{names.tail}")
    signature = f"*, {', '.join(parameters)}" if parameters else ""
    # the names are identifiers of our own headers; a loop over a mapping would cost three times as much per call
    bind = eval(f"lambda {signature}: {brackets.format(', '.join(values))}", {})  # noqa: S307
    bind.__name__ = bind.__qualname__ = script
    return bind


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[str, ...]]:
    getter = cast("Callable[[Any], Any]", attrgetter(*names))
    return getter if len(names) > 1 else lambda source: (getter(source),)
