"""`rmq consume`: prints messages, and then acks them or settles them in another way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import typer

from rmq import Consumer, Delivery, StreamDelivery
from rmq.cli.console import Session
from rmq.cli.options import Group, Start, TopicName
from rmq.errors import InvalidValueError, ReplyLostError
from rmq.spi import counted, span, until_signal
from rmq.views import documents
from rmq.views.words import age_words, labelled_value, sends_words, when

_SLICE_S = 0.25
"""Length of one poll, seconds: a signal takes effect between two polls, never between a claim and its reply."""

_BATCH = 100
_NACKED = "rmq consume --settle nack"


Settle = Literal["ack", "nack", "release", "leave"]
"""Outcome of a message after it is printed."""


def consume(
    session: Session,
    topic: TopicName,
    most: Annotated[int | None, typer.Option("--max", min=1, metavar="N")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="S")] = None,
    follow: Annotated[bool, typer.Option("--follow")] = False,
    ack: Annotated[bool | None, typer.Option("--ack/--no-ack", show_default=False)] = None,
    settle: Annotated[Settle | None, typer.Option(show_default=False)] = None,
    group: Group = None,
    start: Start = None,
    name: Annotated[str | None, typer.Option()] = None,
) -> None:
    """Claim due messages, print them, and ack them. Ctrl-C stops the command cleanly.

    Options:
        most: Stop after this many messages.
        timeout: Stop after this many seconds without a message.  [default: 1]
        follow: Wait for more messages until interrupted with Ctrl-C.
        ack: --no-ack is the same as --settle release.
        settle: Outcome of a printed message: ack; nack (retried by the topic's policy); release (returned when the
            command ends, without using a retry); leave (in flight until its lease ends).  [default: ack]
        name: stream: name of this consumer. Default: a generated name.
    """
    if ack is not None and settle is not None:
        raise InvalidValueError("--settle and --ack/--no-ack cannot be combined")
    then: Settle = settle or ("release" if ack is False else "ack")
    if follow and then == "release":
        raise InvalidValueError(
            "--follow cannot be combined with --settle release or --no-ack, which take effect when the command ends"
        )
    if group is None and (start or name):
        raise InvalidValueError("--start and --name require --group")
    if follow and timeout is not None:
        raise InvalidValueError("--follow and --timeout cannot be combined: --follow waits until Ctrl-C")
    idle_s = 1.0 if timeout is None else timeout
    with (
        session.client() as client,
        client.consumer(client.topic(topic), group=group, name=name, start=start or "new") as consumer,
        until_signal() as stop,
    ):
        printer = _Printer(session, consumer, then)
        try:
            while not stop.is_set() and printer.count != most:
                left = _BATCH if most is None else min(_BATCH, most - printer.count)
                found = _poll(consumer, left, None if follow else idle_s, stop)
                if not found:
                    break
                printer.take(found)
        finally:
            printer.end()


def _poll(consumer: Consumer, most: int, idle_s: float | None, stop: threading.Event) -> list[Delivery]:
    """Wait up to `idle_s` seconds for messages, `None` for no limit. Returns an empty list then, or if stopped."""
    waited_s = 0.0
    while not stop.is_set():
        slice_s = _SLICE_S if idle_s is None else max(0.0, min(_SLICE_S, idle_s - waited_s))
        if found := consumer.poll(most, slice_s):
            return found
        waited_s += slice_s
        if idle_s is not None and waited_s >= idle_s:
            break
    return []


class _Printer:
    """Prints deliveries and settles the printed ones; the others are released."""

    def __init__(self, session: Session, consumer: Consumer, then: Settle) -> None:
        self._session = session
        self._consumer = consumer
        self._then: Settle = then
        self._held: list[Delivery] = []
        self.count = 0

    def take(self, found: Sequence[Delivery]) -> None:
        try:
            for delivery in found:
                self._print(delivery)
            sys.stdout.flush()
        except BaseException:  # such as a reader that left: it may have read any part
            self._held += found
            raise
        self.count += len(found)
        self._settle(found)

    def end(self) -> None:
        """Release the deliveries that were not printed."""
        self._warn([delivery for delivery in self._held if not delivery.release()], "released")
        self._held = []

    def _settle(self, printed: Sequence[Delivery]) -> None:
        match self._then:
            case "ack":
                self._try(lambda: self._warn(self._consumer.ack(printed), "acked"))
            case "nack":
                for delivery in printed:
                    self._try(lambda one=delivery: self._warn([] if one.nack(error=_NACKED) else [one], "nacked"))
            case "release":
                self._held += printed
            case "leave":
                pass

    def _try(self, settle: Callable[[], None]) -> None:
        """Settle a message, and only warn if the reply is lost: the message may be redelivered."""
        try:
            settle()
        except ReplyLostError as error:
            self._session.warn(str(error))

    def _warn(self, lost: Sequence[Delivery], what: str) -> None:
        if lost:
            self._session.warn(
                f"{counted(len(lost), 'message')} could not be {what} because of an expired lease; redelivery follows"
            )

    def _print(self, delivery: Delivery) -> None:
        late_ms = None if delivery.due_ms is None else max(0, delivery.claimed_ms - delivery.due_ms)
        if self._session.json:
            self._session.document(documents.delivery(delivery, late_ms))
            return
        facts = [f"slot {delivery.slot}", f"attempt {delivery.attempt}"]
        if isinstance(delivery, StreamDelivery):
            facts.insert(0, f"id {delivery.id}")
        if delivery.priority is not None:
            facts.append(f"priority {delivery.priority}")
        if delivery.due_ms is not None and late_ms is not None:
            facts += [f"due {when(delivery.due_ms)}", f"{span(late_ms)} late"]
        if delivery.topic.merge is not None:
            facts.append(f"{sends_words(delivery)}, sent {age_words(delivery, delivery.claimed_ms)}")
        self._session.message(delivery.content, facts, labelled_value(delivery))
