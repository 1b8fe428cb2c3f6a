"""`rmq dead`: list, redrive and purge dead letters."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.text import Text

from rmq._admin.dead_letters import DeadFilter, DeadLetters, GroupDead
from rmq._model.display import from_now, shown
from rmq._model.entries import check_group
from rmq._model.topics import Topic
from rmq._model.whereabouts import DeadMessage
from rmq.cli import documents
from rmq.cli.console import FAILED, Session, cut, is_terminal, new_table, redis_now_ms
from rmq.cli.options import DueIn, Group, Limit, NewPriority, TopicName, Typed, Yes, payload
from rmq.cli.parsing import parse_past_ms
from rmq.client import RmqClient
from rmq.errors import InvalidValueError

_MOST_ERROR_CHARACTERS = 120
"""An error is wrapped, not cut to a line: people look for the cause of death."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Options that choose among the dead.

    Attributes:
        contents: Only these contents.
        matching: Only contents that match this pattern.
        error: Only with this error type.
        after: Only dead since then: a time or an age.
        before: Only dead before then: a time or an age.
    """

    contents: Annotated[
        list[bytes] | None,
        Typed(payload),
        typer.Option("--content", metavar="CONTENT", help="Only this content; repeatable."),
    ] = None
    matching: Annotated[
        str | None,
        typer.Option("--matching", metavar="PATTERN", help="Only contents that match, with * ? and \\[...]."),
    ] = None
    error: Annotated[
        str | None, typer.Option("--error", metavar="TYPE", help="Only with this error type, such as ValueError.")
    ] = None
    after: Annotated[
        str | None, typer.Option("--after", metavar="TIME|AGE", help="Only dead since then, such as 2h (ago).")
    ] = None
    before: Annotated[str | None, typer.Option("--before", metavar="TIME|AGE", help="Only dead before then.")] = None

    def filter(self, now_ms: int) -> DeadFilter:
        """Return the choice as the library takes it; an age counts back from `now_ms`."""
        return DeadFilter(
            contents=frozenset(self.contents) if self.contents else None,
            matching=self.matching,
            error_type=self.error,
            died_after=None if self.after is None else parse_past_ms(self.after, "--after", now_ms),
            died_before=None if self.before is None else parse_past_ms(self.before, "--before", now_ms),
        )


def list_dead(
    session: Session,
    topic: TopicName,
    chosen: Chosen,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Most messages; 0 for all.")] = 50,
    group: Group = None,
) -> None:
    """Show dead messages and why they died, slot by slot, the oldest first."""
    with session.client() as client:
        definition = client.topic(topic)
        now_ms = redis_now_ms(client, definition)
        where = chosen.filter(now_ms)
        found = _dead(client, definition, group).list(where, limit + 1 if limit else None)
        if session.json:
            for message in itertools.islice(found, limit or None):
                session.document(documents.dead_message(message))
            more = limit and next(found, None) is not None
        else:
            messages = list(found)
            more = limit and len(messages) > limit
            _print(session, messages[: limit or None], now_ms)
        if more:
            session.note(f"there are more than these {limit:,}: see --limit, and --json for all that is known of them")


def _print(session: Session, messages: list[DeadMessage], now_ms: int) -> None:
    if not messages:
        session.note("no dead messages")
        return
    table = new_table("~content", "error", ">attempts", ">slot", ">died")
    for message in messages:
        error = ": ".join(filter(None, (message.error_type, message.error_message)))
        table.add_row(
            cut(message.content),
            Text(shown(error, _MOST_ERROR_CHARACTERS)),
            str(message.attempts),
            str(message.slot),
            from_now(message.died_ms, now_ms),
        )
    session.out.print(table)


def redrive(
    session: Session,
    topic: TopicName,
    chosen: Chosen,
    limit: Limit = None,
    rate: Annotated[float | None, typer.Option(metavar="N", help="Most messages a second.")] = None,
    priority: NewPriority = None,
    due_in: DueIn = None,
    group: Group = None,
) -> None:
    """Send dead messages again, as fresh ones with their bodies and all retries. All of them without a filter."""
    with session.client() as client:
        dead, where = _chosen(client, topic, group, chosen)
        with session.progress("redriven", _total(session, client, dead, where, limit)) as moved:
            if isinstance(dead, GroupDead):
                if (rate, priority, due_in) != (None, None, None):
                    raise InvalidValueError("entries of a stream have neither --rate nor --priority nor --due-in")
                result = dead.redrive(where, limit=limit, progress=moved)
            else:
                result = dead.redrive(
                    where, limit=limit, per_second=rate, priority=priority, due_in=due_in, progress=moved
                )
    if session.json:
        session.document({"redriven": result.redriven, "merged": result.merged, "absent": result.absent})
        return
    extra = [f"{result.merged:,} merged with a fresh copy"] if result.merged else []
    extra += [f"{result.absent:,} gone meanwhile"] if result.absent else []
    session.line(", ".join([f"{result.redriven:,} redriven", *extra]))


def purge(
    session: Session,
    topic: TopicName,
    chosen: Chosen,
    limit: Limit = None,
    yes: Yes = False,
    group: Group = None,
) -> None:
    """Drop dead messages for good. Asks first; all of them without a filter."""
    if not yes and not is_terminal(sys.stdin):
        raise InvalidValueError("purge drops messages for good and cannot ask without a terminal: add --yes")
    with session.client() as client:
        dead, where = _chosen(client, topic, group, chosen)
        count = _count(client, dead, where, limit) if not yes else _total(session, client, dead, where, limit)
        if not yes and count and not typer.confirm(f"Drop {count:,} dead messages of {topic} for good?", err=True):
            session.note("nothing was dropped")
            raise typer.Exit(FAILED)
        with session.progress("purged", count) as moved:
            dropped = dead.purge(where, limit=limit, progress=moved)
    if session.json:
        session.document({"purged": dropped})
    else:
        session.line(f"{dropped:,} purged")


def _chosen(
    client: RmqClient, name: str, group: str | None, chosen: Chosen
) -> tuple[DeadLetters | GroupDead, DeadFilter]:
    topic = client.topic(name)
    return _dead(client, topic, group), chosen.filter(redis_now_ms(client, topic))


def _dead(client: RmqClient, topic: Topic, group: str | None) -> DeadLetters | GroupDead:
    check_group(topic, group, "new")
    return client.dead(topic) if group is None else client.stream(topic).dead(group)


def _total(
    session: Session, client: RmqClient, dead: DeadLetters | GroupDead, where: DeadFilter, limit: int | None
) -> int | None:
    """Return how many are meant, where a bar shows it."""
    return _count(client, dead, where, limit) if session.err.is_terminal else None


def _count(client: RmqClient, dead: DeadLetters | GroupDead, where: DeadFilter, limit: int | None) -> int:
    if where != DeadFilter():
        count = dead.count(where)
    elif isinstance(dead, GroupDead):
        count = client.stream(dead.topic).group(dead.group).dead
    else:
        count = client.inspect(dead.topic).stats().dead
    return count if limit is None else min(count, limit)
