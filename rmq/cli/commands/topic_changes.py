"""`rmq topics diff` and `rmq topics apply`: compare the topics of a program's modules with the registered ones.

A definition is registered at its first use. If a later release of the program defines other settings, the registered
ones stay in force, and a warning is logged. A deployment applies the new settings with these two commands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, cast

import typer

from rmq import Listener, RmqClient, Topic
from rmq._broker.registry import Difference, differences
from rmq._listening.discovery import MARK, modules
from rmq.cli.commands.topics import warn_of_two_leases
from rmq.cli.console import Session
from rmq.errors import InvalidValueError, TopicMismatchError, UnknownTopicError
from rmq.spi import counted

DIFFERS = 3
"""Exit code of `diff` if a topic differs."""

Module = Annotated[str, typer.Argument(metavar="MODULE", help="Module or package to import, such as shop.jobs.")]


@dataclass(frozen=True, slots=True)
class Compared:
    """A topic of a program, its registered definition, if any, and their differences."""

    topic: Topic
    registered: Topic | None
    differences: tuple[Difference, ...] = ()

    @property
    def differs(self) -> bool:
        """True if the topic is not registered, or differs from its registered definition."""
        return self.registered is None or bool(self.differences)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON document."""
        return {
            "topic": self.topic.name,
            "settings": [each.setting for each in self.differences],
            "fixed": [each.setting for each in self.differences if each.fixed],
            "registered": None if self.registered is None else self.registered.to_fields(),
            "program": self.topic.to_fields(),
        }


def diff(session: Session, module: Module) -> None:
    """Show how the topics of MODULE differ from the registered ones. Exit code 3: there are differences."""
    found = _topics_in(session, module)
    with session.client() as client:
        compared = [_compared(client, topic) for topic in found]
    differing = [each for each in compared if each.differs]
    if session.json:
        session.document({"topics": len(found), "differing": [each.to_json() for each in differing]})
    for each in [] if session.json else differing:
        session.line((each.topic.name, "bold"), "" if each.registered else "  is not registered")
        for one in each.differences:
            session.line(f"  registered: {one.worded()}{' (cannot be changed)' if one.fixed else ''}")
    session.note(f"{len(differing)} of {counted(len(found), 'topic')} of {module} differ")
    if differing:
        raise typer.Exit(DIFFERS)


def apply(session: Session, module: Module) -> None:
    """Register the topics of MODULE, and change the settings of registered topics to those of MODULE.

    Nothing is changed if the type, number of slots, merge or order of equal priorities of any topic differs.
    """
    found = _topics_in(session, module)
    with session.client() as client:
        compared = [_compared(client, topic) for topic in found]
        for each in compared:
            if fixed := [one.worded() for one in each.differences if one.fixed]:
                raise TopicMismatchError(
                    f"topic {each.topic.name} is registered with {'; '.join(fixed)}, which cannot be changed; "
                    "nothing was applied",
                    topic=each.topic.name,
                )
        applied = [each for each in compared if each.differs]
        for each in applied:
            if each.registered is None:
                client.producer(each.topic)
            client.update_topic(each.topic.name, lambda _, wanted=each.topic: wanted)
    for each in applied:
        if any(one.setting == "lease" for one in each.differences):
            warn_of_two_leases(session, each.topic)
    if session.json:
        session.document({"topics": len(found), "applied": [each.to_json() for each in applied]})
        return
    for each in applied:
        words = [one.worded("now") for one in each.differences]
        session.line((each.topic.name, "bold"), f"  {'; '.join(words) or 'registered'}")
    session.note(f"{len(applied)} of {counted(len(found), 'topic')} of {module} changed")
    if any(each.registered for each in applied):
        session.note("running processes keep the old settings until they restart")


def _compared(client: RmqClient, topic: Topic) -> Compared:
    try:
        registered = client.topic(topic.name)
    except UnknownTopicError:
        return Compared(topic, None)
    return Compared(topic, registered, tuple(differences(registered, topic)))


def _topics_in(session: Session, name: str) -> list[Topic]:
    """Return the topics that a module, or the modules of a package, define at their top level, sorted by name.

    Finds `Topic` objects, also inside lists and dicts, and the topics of listeners, including those of clients.

    Raises:
        InvalidValueError: The module cannot be imported, has no topic, or defines one twice with different settings.
    """
    session.pass_url_on()
    if "" not in sys.path:
        sys.path.insert(0, "")
    found: dict[str, Topic] = {}
    for module in modules(name):
        for topic in _topics_of(list(vars(module).values())):
            known = found.setdefault(topic.name, topic)
            if known != topic:
                words = "; ".join(each.worded() for each in differences(known, topic))
                raise InvalidValueError(f"{name} defines topic {topic.name} twice, with different settings: {words}")
    if not found:
        raise InvalidValueError(f"{name} defines neither a Topic nor a listener at the top level of a module")
    return [found[each] for each in sorted(found)]


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
