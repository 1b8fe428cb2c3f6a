"""Binds keys and arguments to a script by name. Only the header of the script has their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar, cast

from rmq._broker.keys import group_keys, slot_keys
from rmq._io.wire import Argument
from rmq._model.scores import Ties, ages_for
from rmq._model.topics import Topic
from rmq._servers.server_check import PUBLISH
from rmq._transport.call import NO_REFUSALS, Call, Refusals
from rmq._transport.script_library import Names, Script, default_scripts
from rmq.errors import RmqError

T = TypeVar("T")

SAFE_AGAIN = "Repeating it is safe"
"""Value of `durable` for a script whose call may be repeated by its caller."""

FILLED_IN = {"publish": PUBLISH}
"""Arguments that callers do not give: `Connections` fills them in."""

NO_KEYS: Mapping[str, str] = MappingProxyType({})


def order_of(topic: Topic) -> str:
    """Return the delivery order of a topic, as an argument of scripts."""
    return "low" if topic.type.timed else "high"


def claim_order_of(topic: Topic) -> str:
    """Return the claim order of a topic, as an argument of scripts; `any` ignores contents."""
    return "any" if topic.ties is Ties.ANY else order_of(topic)


SETTINGS: Mapping[str, Callable[[Topic], Argument]] = {
    "lease_ms": attrgetter("lease_ms"),
    "max_backlog": attrgetter("max_backlog_per_slot"),
    "max_dead": attrgetter("max_dead_per_slot"),
    "max_dead_age_ms": attrgetter("max_dead_age_ms"),
    "max_retries": attrgetter("max_retries"),
    "order": order_of,
    "scale": lambda topic: ages_for(topic.max_priority).scale,
    "unit_ms": lambda topic: ages_for(topic.max_priority).unit_ms,
}
"""Arguments that follow from the topic. Callers give them only to pass another value."""


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
        self.refusals = refusals
        self._getters: dict[tuple[bool, bool], Callable[[Any], tuple[str, ...]]] = {}
        self.repeatable = repeatable
        self.durable = durable

    @cached_property
    def _script(self) -> Script:
        return default_scripts()[self.name]

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
        return _binder(self.name, self._script.args, known)

    @cached_property
    def _settings(self) -> Mapping[str, Callable[[Topic], Argument]]:
        return {name: SETTINGS[name] for name in self._script.args.required if name in SETTINGS}

    def settings_of(self, topic: Topic, group: str | None = None) -> dict[str, Any]:
        """Return the arguments that follow from the topic, see `SETTINGS`, and the group, if the script takes it."""
        settings = {name: value_of(topic) for name, value_of in self._settings.items()}
        if group is not None and "group" in self._script.args.required:
            settings["group"] = group
        return settings

    def _names_of(self, topic: Topic) -> tuple[str, ...]:
        """Return the names of the keys, including the optional ones that the topic needs for send times or merging."""
        born, merges = options_of(topic)
        names = self._script.keys
        return names.required + tuple(name for name in names.optional if (born if name == "born" else merges))

    def keys_of(self, topic: Topic, slot: int, group: str | None = None) -> tuple[str, ...]:
        """Return the keys of a slot, or of a group on it, including the optional ones that the topic has."""
        options = options_of(topic)
        getter = self._getters.get(options)
        if getter is None:
            getter = self._getters[options] = _getter(self._names_of(topic))
        return getter(slot_keys(topic.name, slot) if group is None else group_keys(topic.name, slot, group))

    def keys_with(self, topic: Topic, slot: int, others: Mapping[str, str]) -> tuple[str, ...]:
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
        *,
        group: str | None = None,
        keys: Mapping[str, str] = NO_KEYS,
        durable: bool = True,
        **args: Any,
    ) -> Call[T]:
        """Return a call of the script on a slot of a topic.

        Args:
            topic: The definition.
            slot: The slot.
            parse: Function that parses the reply.
            group: Use the keys of this group of a stream topic instead of the slot's.
            keys: Keys, by name, that replace those of the slot.
            durable: False if no caller relies on this call of a durable script.
            args: The arguments, see `args`; those of `settings_of` may be omitted.
        """
        names = self.keys_with(topic, slot, keys) if keys else self.keys_of(topic, slot, group)
        values = self.args(**{**self.settings_of(topic, group), **args})
        confirmed = self.durable if durable else ""
        return Call(self.name, names, values, parse, self.repeatable, topic.name, slot, confirmed, self.refusals)

    def call_on(
        self,
        target: str,
        parse: Callable[[Any], T],
        keys: Mapping[str, str] | tuple[str, ...],
        *,
        slot: int = 0,
        **args: Any,
    ) -> Call[T]:
        """Return a call of the script on keys that belong to no slot, or to several slots.

        Args:
            target: The topic, or a key, for errors.
            parse: Function that parses the reply.
            keys: The keys by name, or those of a script over slots in its order.
            slot: The first slot, for errors.
            args: The arguments, see `args`.
        """
        names = keys if isinstance(keys, tuple) else tuple(keys[name] for name in self._script.keys.required)
        return Call(self.name, names, self.args(**args), parse, self.repeatable, target, slot, self.durable)


def refusal(kind: type[RmqError], text: str) -> Callable[[Call[Any], Sequence[str]], RmqError]:
    """Return a function for `Refusals` that inserts the words after the code, and `{target}`, into an error's text."""
    return lambda call, words: call.error(kind, text.format(*words, target=call.target))


def options_of(topic: Topic) -> tuple[bool, bool]:
    """Return whether the slots of a topic have the key with send times, and the keys for merging."""
    return topic.ttl is not None and not topic.type.timed, topic.merge is not None


def _binder(script: str, names: Names, known: Mapping[str, Argument]) -> Callable[..., list[Argument]]:
    """Return a function that takes each name as a keyword and returns the values in order.

    Args:
        script: Name of the script.
        names: Its arguments.
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
    bind = eval(f"lambda {signature}: [{', '.join(values)}]", {})  # noqa: S307
    bind.__name__ = bind.__qualname__ = script
    return bind


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[str, ...]]:
    getter = cast("Callable[[Any], Any]", attrgetter(*names))
    return getter if len(names) > 1 else lambda source: (getter(source),)
