"""Commands on messages: `rmq find`, `search`, `peek`, `cancel`, `reschedule`, `promote` and `reprioritise`.

On dead letters: `rmq dead list`, `redrive` and `purge`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal, cast

import typer
from rich.text import Text

from rmq import (
    Control,
    ControlResult,
    DeadFilter,
    DeadLetters,
    DeadMessage,
    FoundMessage,
    GroupDead,
    PeekedMessage,
    RmqClient,
    StreamTopic,
    Topic,
    Whereabouts,
)
from rmq.cli.commands.streams import print_entries, print_pending
from rmq.cli.console import FAILED, Columns, Session, cut, cut_words, is_terminal, reason, redis_now_ms
from rmq.cli.options import (
    Content,
    DueIn,
    Group,
    Limit,
    NewPriority,
    SlotBasis,
    Slots,
    TopicName,
    Yes,
    duration,
    instant,
    parse_past,
    payload,
    span_of,
)
from rmq.errors import InvalidValueError
from rmq.spi import AnyPlace, check_group, counted, moment_at, safe_lines, shown, span
from rmq.views import documents
from rmq.views.documents import Place
from rmq.views.reading import search_pages
from rmq.views.words import Carrier, age_words, from_now, json_payload, labelled_value, sends_words, value_words

_MOST_ERROR_CHARACTERS = 120
"""Maximum length of an error in the table, which is wrapped, not cut to one line, so that the cause is readable."""


def find(
    session: Session,
    topic: TopicName,
    content: Content,
    slot_basis: SlotBasis = None,
    everywhere: Annotated[bool, typer.Option("--everywhere")] = False,
) -> int:
    """Show the state of a message. Exit code 1: not found, because it was acked, cancelled, or never sent.

    Options:
        everywhere: Search all slots, for a message whose slot basis is not known.
    """
    with session.opened(topic) as (client, definition):
        found = client.inspect(definition).find(content, slot_basis, everywhere)
    if session.json:
        session.document(documents.whereabouts(definition, found))
    else:
        _print(session, definition, found)
    return FAILED if found.gone else 0


def _print(session: Session, topic: Topic, found: Whereabouts) -> None:
    now_ms = found.now_ms
    if found.gone:
        session.warn(f"not found in slot {found.slot}: {shown(found.content)} was acked, cancelled, or never sent")
        return
    session.line((shown(found.content), "bold"), f" in slot {found.slot} of {found.topic}")
    if found.in_flight is not None:
        _print_in_flight(session, topic, found, found.in_flight)
    if found.stored is not None:
        session.line("  in store: ", _stored_in_words(found.stored, now_ms))
        _print_folded(session, topic, found.stored, now_ms)
    if found.waiting is not None:
        when = from_now(found.waiting.due_ms or 0, now_ms)
        session.line(f"  waits for a retry, {when}, {_retries(found.waiting)} left")
        _print_folded(session, topic, found.waiting, now_ms)
    if found.failure is not None:
        why = f"{shown(found.failure.type)}: {shown(found.failure.message)}"
        session.line(f"  last failed {from_now(found.failure.last_ms, now_ms)}: ", (why, "red"))
    if found.dead is not None:
        why = f"{shown(found.dead.error_type)}: {shown(found.dead.error_message)}"
        died = from_now(found.dead.died_ms, now_ms)
        session.line(f"  dead: died {died} after {found.dead.attempts} deliveries: ", (why, "red"))
        _print_folded(session, topic, found.dead, now_ms)
    _print_attempts(session, found)
    if topic.merge is not None:
        return
    for name, carrier in (
        ("body", found.stored or found.in_flight or found.waiting),
        ("body of the dead message", found.dead),
    ):
        if carrier is not None and carrier.body is not None:
            session.line(f"  {name}, {len(carrier.body):,} bytes: ", shown(carrier.body))


def _print_attempts(session: Session, found: Whereabouts) -> None:
    """Print the failed attempts and the last traceback, if the topic keeps them."""
    failed = found.dead or found.failure
    for each in failed.history if failed is not None else ():
        when_ = from_now(each.failed_ms, found.now_ms)
        why = f"{shown(each.error_type)}: {shown(each.error_message)}"
        session.line(f"    failed {when_} on {shown(each.worker)}: ", why)
    if failed is not None and failed.traceback:
        for line in safe_lines(failed.traceback).splitlines():
            session.line(("      ", "dim"), (line, "dim"))


def _print_in_flight(session: Session, topic: Topic, found: Whereabouts, message: PeekedMessage) -> None:
    left_ms = message.lease_left_ms
    lease = f"its lease expires in {span(left_ms)}"
    if not left_ms:
        lease = "its lease has expired; the next claim returns it"
    session.line("  in flight: ", lease, f", {_retries(message)} left after this delivery")
    session.line("    ", holder_words(message))
    session.line("    workers that hold messages of this slot: ", ", ".join(map(shown, found.holders)) or "not known")
    _print_folded(session, topic, message, found.now_ms)


def holder_words(message: PeekedMessage) -> str:
    """Return for how long which worker handles a message in flight or, if none reports it, when it was claimed."""
    if message.handled_by is None:
        return f"claimed or renewed {from_now(message.claimed_ms or 0, message.now_ms)}"
    return f"handled for {span(message.handled_ms or 0)} by {shown(message.handled_by)}"


def _print_folded(session: Session, topic: Topic, message: Carrier, now_ms: int) -> None:
    """Print the value of a merged message, and the number of its sends."""
    if topic.merge is None:
        return
    session.line(f"    {sends_words(message)}, sent {age_words(message, now_ms)}")
    if (what := labelled_value(message)) is not None:
        size = f", {len(message.body or b''):,} bytes" if what[0] == "body" else ""
        session.line(f"    {what[0]}{size}: ", what[1])


def _retries(message: PeekedMessage) -> str:
    return counted(message.retries_left or 0, "retry", "retries")


def _stored_in_words(message: PeekedMessage, now_ms: int) -> str:
    if message.retries_left is not None:
        return f"a retry, due at once, {_retries(message)} left"
    if message.due_ms is None:
        return f"priority {message.priority}"
    return f"due {from_now(message.due_ms, now_ms)}"


def search(
    session: Session,
    topic: TopicName,
    pattern: Annotated[bytes | None, typer.Argument(metavar="PATTERN", parser=payload)] = None,
    prefix: Annotated[bytes | None, typer.Option(metavar="TEXT", parser=payload)] = None,
    places: Annotated[list[Place] | None, typer.Option("--place")] = None,
    slots: Slots = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    budget: Annotated[int, typer.Option(min=1, metavar="N")] = 1_000_000,
    cursor: Annotated[str | None, typer.Option(metavar="CURSOR")] = None,
) -> int:
    """Search messages by content. Exit code 1: none found.

    A message whose state changes during the search may be missed or shown twice.

    Options:
        pattern: Glob pattern of contents, with * ? and [...]. Default: all contents.
        prefix: Only contents that start with this text, instead of a pattern.
        places: Only messages in this state: store (the backlog), in-flight, retry or dead. Can be given more than once.
        limit: Maximum number of messages.
        budget: Stop after about this many messages have been examined.
        cursor: Continue where an earlier search stopped.
    """
    with session.client() as client:
        definition = client.topic(topic)
        view = client.inspect(definition)
        wanted = cast("list[AnyPlace]", [place.name for place in places or Place])
        where: dict[str, Any] = {"prefix": prefix, "places": wanted, "slots": slots, "cursor": cursor}
        pages = list(search_pages(view, pattern, limit, budget, **where))
    found = [message for page in pages for message in page.messages]
    cursor, looked_at = pages[-1].cursor, sum(page.looked_at for page in pages)
    columns: Columns[FoundMessage] = {
        "~content": lambda message: cut(message.content),
        **value_columns(definition, found),
        "place": lambda message: Place[message.place].value,
        ">slot": lambda message: str(message.slot),
        ">when": _when,
        "~why": lambda message: cut(reason(message)),
    }
    none = f"no message of topic {topic} matches" if cursor is None else "no message matches so far"
    session.rows(found, partial(documents.message, definition), columns, none)
    if cursor is not None:
        session.note(f"examined about {looked_at:,} messages; continue with --cursor '{cursor}'")
    return 0 if found else FAILED


def _when(message: FoundMessage) -> str:
    if message.due_ms is not None:
        return from_now(message.due_ms, message.now_ms)
    return "retry" if message.retries_left is not None else f"{message.priority:,}"


def value_columns(topic: Topic, found: Sequence[PeekedMessage | FoundMessage]) -> Columns[Any]:
    """Return the columns of the messages' bodies, if any; on a topic with a merge, of their values and sends."""
    if topic.merge is not None:
        return {
            "~value": lambda message: cut_words(value_words(message)),
            ">sends": lambda message: f"{message.merged:,}" if message.merged else "-",
        }
    has_bodies = any(message.body is not None for message in found)
    return {"~body": lambda message: cut(message.body or b"")} if has_bodies else {}


Where = Literal["store", "in-flight", "retry"]
_DUE = {"store": "due", "in-flight": "lease ends", "retry": "retry"}


def peek(
    session: Session,
    topic: TopicName,
    place: Annotated[Where, typer.Option()] = "store",
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    slots: Slots = None,
    group: Group = None,
) -> None:
    """Show the next messages without claiming them. A stream topic requires --group.

    Options:
        place: State of the messages: store (the backlog), in-flight, or retry (waiting for a retry).
        limit: Maximum number of messages.
    """
    with session.opened(topic) as (client, definition):
        check_group(definition, group, "new")
        if group is not None:
            _peek_group(session, client.stream(definition), group, place, limit, slots)
            return
        found = client.inspect(definition).peek(cast("Any", documents.Place(place).name), limit, slots)
        found = sorted(found, key=lambda message: _next_first(definition, message))[:limit]
        columns: Columns[PeekedMessage] = {
            "~content": lambda message: cut(message.content),
            **value_columns(definition, found),
            **({} if definition.merge is None else {">sent": lambda message: age_words(message, message.now_ms)}),
            ">slot": lambda message: str(message.slot),
        }
        if definition.type.timed or place != "store":
            columns |= {f">{_DUE[place]}": _due_words}
        else:
            columns |= {">priority": lambda message: str(message.priority) if _is_new(message) else "retry"}
        if definition.merge is None or not all(map(_is_new, found)):
            columns |= {">retries left": lambda message: "all" if _is_new(message) else str(message.retries_left)}
        if place == "in-flight":
            columns |= {"~held": holder_words}
        document = partial(documents.message, definition)
        session.rows(found, document, columns, f"topic {topic} has no messages with --place {place}")


def _is_new(message: PeekedMessage) -> bool:
    return message.retries_left is None


def _due_words(message: PeekedMessage) -> str:
    return "now" if message.due_ms is None else from_now(message.due_ms, message.now_ms)


def _peek_group(
    session: Session, view: StreamTopic, group: str, place: Where, limit: int, slots: list[int] | None
) -> None:
    """Show the entries of a group that are unread, in flight, or waiting for a retry."""
    if place == "store":
        print_entries(session, view.topic, view.unread(group, limit, slots), 0)
        return
    rows = (row for row in view.pending(group, None, slots) if (row.consumer is None) is (place == "retry"))
    print_pending(session, view.topic.name, group, islice(rows, limit), 0)


def _next_first(topic: Topic, message: PeekedMessage) -> tuple[int, int]:
    """Return a sort key that orders the messages of several slots as if they were in one slot."""
    if topic.type.timed or message.place != "store":
        return (message.due_ms or 0, message.slot)
    return (-message.score, message.slot)


def cancel(
    session: Session,
    topic: TopicName,
    content: Annotated[bytes | None, typer.Argument(metavar="[CONTENT]", parser=payload)] = None,
    slot_basis: SlotBasis = None,
    matching: Annotated[bytes | None, typer.Option(metavar="PATTERN", parser=payload)] = None,
    prefix: Annotated[bytes | None, typer.Option(metavar="TEXT", parser=payload)] = None,
    slots: Slots = None,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    yes: Yes = False,
) -> int:
    """Remove messages that are in the backlog or wait for a retry: one by its content, or all that match.

    Messages in flight are not changed. Exit code 1: there is no such message, or none matches.

    Options:
        content: Content of the message.
        matching: Remove all messages whose content matches this glob pattern, with * ? and [...].
        prefix: Remove all messages whose content starts with this text.
        dry_run: With --matching or --prefix: only count.
    """
    if [content, matching, prefix].count(None) != 2:
        raise InvalidValueError("give one of CONTENT, --matching and --prefix")
    if content is not None:
        if slots or dry_run or yes:
            raise InvalidValueError("--slot, --dry-run and --yes require --matching or --prefix")
        return steer(session, topic, content, "cancelled", lambda control: control.cancel(content, slot_basis))
    if slot_basis is not None:
        raise InvalidValueError("--slot-basis requires CONTENT; --matching and --prefix look in all slots")
    if not (yes or dry_run or is_terminal(sys.stdin)):
        raise InvalidValueError(
            "--matching and --prefix remove messages permanently, and cannot ask for confirmation without a terminal: "
            "add --yes, or --dry-run to only count"
        )
    with session.client() as client:
        control = client.control(topic)
        found = control.cancel_matching(matching, prefix=prefix, slots=slots, dry_run=True)
        about = f"{counted(found.cancelled, 'message matches', 'messages match')}"
        about += f"; {found.in_flight:,} more in flight are not changed" if found.in_flight else ""
        if not dry_run and found.cancelled:
            session.note(about)
            if not yes and not typer.confirm("Permanently remove them?", err=True):
                session.note("nothing was cancelled")
                return FAILED
            with session.progress("cancelled", found.cancelled) as moved:
                found = control.cancel_matching(matching, prefix=prefix, slots=slots, progress=moved)
    document = {"topic": topic, "dry_run": dry_run, "cancelled": found.cancelled, "in_flight": found.in_flight}
    session.result(document, about if dry_run or not found.cancelled else f"{found.cancelled:,} cancelled")
    return 0 if found.cancelled else FAILED


def reschedule(
    session: Session,
    topic: TopicName,
    content: Content,
    due_in: Annotated[int | None, typer.Option("--in", metavar="DURATION", parser=duration)] = None,
    at: Annotated[int | None, typer.Option(metavar="TIME", parser=instant)] = None,
    priority: Annotated[int | None, typer.Option()] = None,
    slot_basis: SlotBasis = None,
) -> int:
    """Change the due time or priority of a message. Exit code 1: there is no such message.

    Options:
        due_in: New due time, as a duration from now; 0s for now.
        at: New due time.
        priority: The new priority.
    """
    if [due_in, at, priority].count(None) != 2:
        raise InvalidValueError("give exactly one of --in, --at and --priority")

    def act(control: Control) -> ControlResult:
        moment = None if at is None else moment_at(at)
        return control.reschedule(
            content, due_in=span_of(due_in), fixed_time=moment, priority=priority, slot_basis=slot_basis
        )

    return steer(session, topic, content, "rescheduled", act)


def promote(session: Session, topic: TopicName, content: Content, slot_basis: SlotBasis = None) -> int:
    """Make a message due now; on a priority topic, put it first in its slot. Exit code 1: there is no such message."""
    return steer(session, topic, content, "promoted", lambda control: control.promote(content, slot_basis))


def reprioritise(
    session: Session,
    topic: TopicName,
    content: Content,
    priority: Annotated[int, typer.Argument()],
    slot_basis: SlotBasis = None,
) -> int:
    """Change the priority of a message. Exit code 1: there is no such message.

    Options:
        priority: The new priority.
    """
    return steer(
        session, topic, content, "reprioritised", lambda control: control.reprioritise(content, priority, slot_basis)
    )


def steer(session: Session, topic: str, content: bytes, done: str, act: Callable[[Control], ControlResult]) -> int:
    """Change one message and print the result; return exit code 1 if the message was not found."""
    with session.client() as client:
        result = act(client.control(topic))
    why = {
        ControlResult.IN_FLIGHT: "not changed, because it is in flight",
        ControlResult.ABSENT: "not found in the backlog, nor waiting for a retry",
    }.get(result)
    if session.json or why is None:
        document = {"topic": topic, "content": json_payload(content), "result": result.value}
        session.result(document, f"{done}: {shown(content)}")
    else:
        session.warn(f"{why}: {shown(content)}")
    return 0 if result is ControlResult.DONE else FAILED


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
