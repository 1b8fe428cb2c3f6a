"""`rmq topics diff` and `rmq topics apply`: compare the topics of a program's modules with the registered ones.

A definition is registered at its first use. If a later release of the program defines other settings, the registered
ones stay in force, and a warning is logged. A deployment applies the new settings with these two commands.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from rmq import RmqClient, Topic
from rmq.cli.commands.topics import warn_of_two_leases
from rmq.cli.console import Session
from rmq.errors import TopicMismatchError, UnknownTopicError
from rmq.spi import counted, differences, topics_in

DIFFERS = 3
"""Exit code of `diff` if a topic differs."""

Module = Annotated[str, typer.Argument(metavar="MODULE", help="Module or package to import, such as shop.jobs.")]


@dataclass(frozen=True, slots=True)
class Compared:
    """A topic of a program, its registered definition, if any, and their differences."""

    topic: Topic
    registered: Topic | None
    differences: tuple[Any, ...] = ()

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
    session.pass_url_on()
    if "" not in sys.path:
        sys.path.insert(0, "")
    return topics_in(name)
