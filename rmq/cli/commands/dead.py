"""`rmq dead`: list, redrive and purge dead letters."""

from __future__ import annotations

import itertools
import sys
from typing import Annotated, Any

import typer
from rich.text import Text

from rmq.cli.entries import Group
from rmq.cli.session import FAILED, Session, cut, is_terminal, new_table, redis_now_ms
from rmq.cli.shown import from_now, json_payload, shown
from rmq.cli.values import parse_duration_ms, parse_past_ms, typed_bytes
from rmq.client import RmqClient
from rmq.dead import DeadFilter, DeadLetters
from rmq.errors import InvalidValueError
from rmq.results import DeadMessage
from rmq.stream_dead import GroupDead
from rmq.stream_values import DeadEntry, check_group
from rmq.topics import Topic

_MOST_ERROR_CHARACTERS = 120
"""Wrapped, not cut to a line: why it died is what one looks for."""

TopicName = Annotated[str, typer.Argument(help="Name of the topic.")]
Contents = Annotated[
    list[str] | None, typer.Option("--content", metavar="CONTENT", help="Only this content; repeatable.")
]
Matching = Annotated[
    str | None, typer.Option("--matching", metavar="PATTERN", help="Only contents that match, with * ? and \\[...].")
]
ErrorType = Annotated[
    str | None, typer.Option("--error", metavar="TYPE", help="Only with this error type, such as ValueError.")
]
After = Annotated[
    str | None, typer.Option("--after", metavar="TIME|AGE", help="Only dead since then, such as 2h (ago).")
]
Before = Annotated[str | None, typer.Option("--before", metavar="TIME|AGE", help="Only dead before then.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Most messages.")]


def list_dead(
    session: Session,
    topic: TopicName,
    contents: Contents = None,
    matching: Matching = None,
    error: ErrorType = None,
    after: After = None,
    before: Before = None,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Most messages; 0 for all.")] = 50,
    group: Group = None,
) -> None:
    """Show dead messages and why they died, slot by slot, the oldest first."""
    with session.client() as client:
        definition = client.topic(topic)
        now_ms = redis_now_ms(client, definition)
        where = _filter(now_ms, contents, matching, error, after, before)
        found = _dead(client, definition, group).list(where, limit + 1 if limit else None)
        if session.json:
            for message in itertools.islice(found, limit or None):
                session.document(_as_json(message))
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


def _as_json(message: DeadMessage) -> dict[str, Any]:
    entry = {"id": message.id, "group": message.group} if isinstance(message, DeadEntry) else {}
    return {
        "topic": message.topic,
        "slot": message.slot,
        **entry,
        "content": json_payload(message.content),
        "body": json_payload(message.body),
        "died_ms": message.died_ms,
        "error_type": message.error_type,
        "error_message": message.error_message,
        "attempts": message.attempts,
        "first_failed_ms": message.first_failed_ms,
        "last_failed_ms": message.last_failed_ms,
    }


def redrive(
    session: Session,
    topic: TopicName,
    contents: Contents = None,
    matching: Matching = None,
    error: ErrorType = None,
    after: After = None,
    before: Before = None,
    limit: Limit = None,
    rate: Annotated[float | None, typer.Option(metavar="N", help="Most messages a second.")] = None,
    priority: Annotated[int | None, typer.Option(help="priority: their new priority; the lowest by default.")] = None,
    due_in: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time topics: due so long after now; at once by default.")
    ] = None,
    group: Group = None,
) -> None:
    """Send dead messages again, as fresh ones with their bodies and all retries. All of them without a filter."""
    with session.client() as client:
        dead, where = _chosen(client, topic, group, contents, matching, error, after, before)
        due_in_ms = None if due_in is None else parse_duration_ms(due_in, "--due-in")
        with session.progress("redriven", _total(session, client, dead, where, limit)) as moved:
            if isinstance(dead, GroupDead):
                if (rate, priority, due_in) != (None, None, None):
                    raise InvalidValueError("entries of a stream have neither --rate nor --priority nor --due-in")
                result = dead.redrive(where, limit=limit, progress=moved)
            else:
                result = dead.redrive(
                    where, limit=limit, per_second=rate, priority=priority, due_in=due_in_ms, progress=moved
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
    contents: Contents = None,
    matching: Matching = None,
    error: ErrorType = None,
    after: After = None,
    before: Before = None,
    limit: Limit = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    group: Group = None,
) -> None:
    """Drop dead messages for good. Asks first; all of them without a filter."""
    if not yes and not is_terminal(sys.stdin):
        raise InvalidValueError("purge drops messages for good and nobody can be asked here: say --yes")
    with session.client() as client:
        dead, where = _chosen(client, topic, group, contents, matching, error, after, before)
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
    client: RmqClient,
    name: str,
    group: str | None,
    contents: list[str] | None,
    matching: str | None,
    error: str | None,
    after: str | None,
    before: str | None,
) -> tuple[DeadLetters | GroupDead, DeadFilter]:
    topic = client.topic(name)
    return _dead(client, topic, group), _filter(redis_now_ms(client, topic), contents, matching, error, after, before)


def _dead(client: RmqClient, topic: Topic, group: str | None) -> DeadLetters | GroupDead:
    check_group(topic, group, "new")
    return client.dead(topic) if group is None else client.stream(topic).dead(group)


def _filter(
    now_ms: int,
    contents: list[str] | None,
    matching: str | None,
    error: str | None,
    after: str | None,
    before: str | None,
) -> DeadFilter:
    return DeadFilter(
        contents=frozenset(map(typed_bytes, contents)) if contents else None,
        matching=matching,
        error_type=error,
        died_after=None if after is None else parse_past_ms(after, "--after", now_ms),
        died_before=None if before is None else parse_past_ms(before, "--before", now_ms),
    )


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
