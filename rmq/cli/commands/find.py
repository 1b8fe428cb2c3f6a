"""`rmq find` and `rmq search`: find messages by their content."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, cast

import typer

from rmq import FoundMessage, PeekedMessage, Topic, Whereabouts
from rmq.cli.console import FAILED, Columns, Session, cut, cut_words, reason
from rmq.cli.options import Content, SlotBasis, Slots, TopicName, payload
from rmq.spi import AnyPlace, counted, safe_lines, shown, span
from rmq.views import documents
from rmq.views.documents import Place
from rmq.views.words import Carrier, age_words, from_now, labelled_value, sends_words, value_words


def find(
    session: Session,
    topic: TopicName,
    content: Content,
    slot_basis: SlotBasis = None,
    everywhere: Annotated[bool, typer.Option("--everywhere")] = False,
) -> None:
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
    if found.gone:
        raise typer.Exit(FAILED)


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
) -> None:
    """Search messages by content. Exit code 1: none found.

    A message whose state changes during the search may be missed or shown twice.

    Options:
        pattern: Glob pattern of contents, with * ? and [...]. Default: all contents.
        prefix: Only contents that start with this text, instead of a pattern.
        places: Only messages in this state: store (the backlog), in-flight, retry or dead. Can be given more than once.
        limit: Maximum number of messages.
        budget: Stop after about this many entries have been examined.
        cursor: Continue where an earlier search stopped.
    """
    with session.client() as client:
        definition = client.topic(topic)
        view = client.inspect(definition)
        wanted = cast("list[AnyPlace]", [place.name for place in places or Place])
        found: list[FoundMessage] = []
        looked_at, ended = 0, False
        while not ended:
            page = view.search(
                pattern, prefix=prefix, places=wanted, slots=slots, cursor=cursor, limit=limit - len(found)
            )
            found += page.messages
            looked_at, cursor = looked_at + page.looked_at, page.cursor
            ended = cursor is None or len(found) >= limit or looked_at >= budget
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
        session.note(f"examined about {looked_at:,} entries; continue with --cursor '{cursor}'")
    if not found:
        raise typer.Exit(FAILED)


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
