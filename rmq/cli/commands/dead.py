"""`rmq dead`: list, redrive and purge dead letters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from rmq import DeadFilter, DeadLetters, DeadMessage, GroupDead, RmqClient, Topic
from rmq.cli.commands.messages import value_columns
from rmq.cli.console import Columns, Session, cut, reason, redis_now_ms
from rmq.cli.options import DueIn, Group, Limit, NewPriority, TopicName, Yes, parse_past, payload, span_of
from rmq.errors import InvalidValueError
from rmq.spi import check_group, counted, shown
from rmq.views import documents
from rmq.views.words import age_words, from_now

_MOST_ERROR_CHARACTERS = 120
"""Maximum length of an error in the table, which is wrapped, not cut to one line, so that the cause is readable."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Options that select dead messages.

    Attributes:
        contents: Only this content. Can be given more than once.
        matching: Only contents that match this glob pattern, with * ? and [...].
        error: Only messages with this error type, such as ValueError.
        after: Only messages that died after this time, such as 2h for two hours ago.
        before: Only messages that died before this time.
    """

    contents: Annotated[list[bytes] | None, typer.Option("--content", metavar="CONTENT", parser=payload)] = None
    matching: Annotated[str | None, typer.Option("--matching", metavar="PATTERN")] = None
    error: Annotated[str | None, typer.Option("--error", metavar="TYPE")] = None
    after: Annotated[str | None, typer.Option("--after", metavar="TIME|AGE")] = None
    before: Annotated[str | None, typer.Option("--before", metavar="TIME|AGE")] = None

    def filter(self, now_ms: int) -> DeadFilter:
        """Return the options as a `DeadFilter`. Ages are counted back from `now_ms`, in epoch ms."""
        return DeadFilter(
            contents=frozenset(self.contents) if self.contents else None,
            matching=self.matching,
            error_type=self.error,
            died_after=None if self.after is None else parse_past(self.after, "--after", now_ms),
            died_before=None if self.before is None else parse_past(self.before, "--before", now_ms),
        )


def list_dead(
    session: Session,
    topic: TopicName,
    chosen: Chosen,
    limit: Annotated[int, typer.Option(min=0, metavar="N")] = 50,
    group: Group = None,
) -> None:
    """Show dead messages and their errors, slot by slot, oldest first. --json prints all details.

    Options:
        limit: Maximum number of messages; 0 for all.
    """
    with session.opened(topic) as (client, definition):
        now_ms = redis_now_ms(client, definition)

        def error(message: DeadMessage) -> Text:
            text = Text(shown(reason(message), _MOST_ERROR_CHARACTERS))
            return text if definition.merge is None else text.append(f"\nsent {age_words(message, now_ms)}", "dim")

        columns: Columns[DeadMessage] = {
            "~content": lambda message: cut(message.content),
            **value_columns(definition, ()),
            "error": error,
            ">attempts": lambda message: str(message.attempts),
            ">slot": lambda message: str(message.slot),
            ">died": lambda message: from_now(message.died_ms, now_ms),
        }
        found = _dead(client, definition, group).list(chosen.filter(now_ms), limit + 1 if limit else None)
        session.rows(found, partial(documents.dead_message, definition), columns, "no dead messages", limit)


def redrive(
    session: Session,
    topic: TopicName,
    chosen: Chosen,
    limit: Limit = None,
    rate: Annotated[float | None, typer.Option(metavar="N")] = None,
    priority: NewPriority = None,
    due_in: DueIn = None,
    group: Group = None,
) -> None:
    """Send dead messages again, with their bodies and all retries. Without a filter, all of them are sent.

    Options:
        rate: Maximum number of messages per second.
    """
    with session.opened(topic) as (client, definition):
        dead, where = _dead(client, definition, group), chosen.filter(redis_now_ms(client, definition))
        count = _count(dead, where, limit) if session.err.is_terminal else None
        with session.progress("redriven", count) as moved:
            if isinstance(dead, GroupDead):
                if (rate, priority, due_in) != (None, None, None):
                    raise InvalidValueError(
                        "--rate, --priority and --due-in cannot be used for the entries of a stream topic"
                    )
                result = dead.redrive(where, limit=limit, progress=moved)
            else:
                result = dead.redrive(
                    where, limit=limit, per_second=rate, priority=priority, due_in=span_of(due_in), progress=moved
                )
    session.result(
        documents.picked(result, "redriven merged absent"), redriven(result.redriven, result.merged, result.absent)
    )


def redriven(number: int, merged: int, absent: int) -> str:
    """Format the result of a redrive: the messages redriven, merged with the backlog, and no longer dead."""
    extra = [f"{merged:,} merged with the backlog"] if merged else []
    extra += [f"{absent:,} no longer dead"] if absent else []
    return ", ".join([f"{number:,} redriven", *extra])


def purge(
    session: Session,
    topic: TopicName,
    chosen: Chosen,
    limit: Limit = None,
    yes: Yes = False,
    group: Group = None,
) -> None:
    """Delete dead messages permanently, after confirmation. Without a filter, all of them are deleted."""
    with session.opened(topic) as (client, definition):
        dead, where = _dead(client, definition, group), chosen.filter(redis_now_ms(client, definition))

        def agreed(count: int) -> bool:
            return not count or typer.confirm(
                f"Permanently delete {counted(count, 'dead message')} of topic {topic}?", err=True
            )

        def purge_(moved: Callable[[int], None]) -> int:
            return dead.purge(where, limit=limit, progress=moved)

        session.drop(yes, lambda: _count(dead, where, limit), agreed, purge_)


def _dead(client: RmqClient, topic: Topic, group: str | None) -> DeadLetters | GroupDead:
    check_group(topic, group, "new")
    return client.dead(topic) if group is None else client.stream(topic).dead(group)


def _count(dead: DeadLetters | GroupDead, where: DeadFilter, limit: int | None) -> int:
    return min(dead.count(where), limit or sys.maxsize)
