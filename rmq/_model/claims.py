"""Rows of claims, as consumers and listeners pass them on, and as merged deliveries and columns for handlers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from rmq._model.deliveries import Claim, Delivery, value_of
from rmq._model.outcomes import ACKED, RELEASED, Outcome, Verb, failed
from rmq._model.records import TRACE_MARK, Record, body_in, read_record, unwrap
from rmq._model.scores import ages_for, retries_left_of
from rmq._model.times import Duration, duration_ms
from rmq._model.topics import Topic
from rmq._model.typed import PayloadT
from rmq.errors import InvalidValueError


class MergedDelivery(Delivery[PayloadT]):
    """A delivery of a topic with `merge=`; its `record` is the result of its sends.

    What it takes from the record is read when it is first asked for: reading all of it costs as much as the delivery.
    """

    __slots__ = ("_record", "items", "value")

    def __init__(self, claim: Claim, row: int, content: bytes, body: bytes | None = None) -> None:
        del body
        self.claim, self.row, self.content = claim, row, content
        if numbers := claim.numbers:
            self.value = numbers[row]  # pyright: ignore[reportAttributeAccessIssue, reportIncompatibleMethodOverride]

    def __getattr__(self, name: str) -> Any:
        if name == "_record":
            self._record = read_record(self._stored)
        elif name == "items":
            self.items = self._record.items  # pyright: ignore[reportAttributeAccessIssue, reportIncompatibleMethodOverride]
        elif name == "value":
            found = body_in(self._stored)
            if found is not None:  # is not kept: it would be a copy of what the claim has
                return unwrap(found)[0]
            self.value = value_of(self._record, self.body)  # pyright: ignore[reportAttributeAccessIssue, reportIncompatibleMethodOverride]
        elif name == "body":
            found = body_in(self._stored)
            self.body = self._record.unwrapped[0] if found is None else unwrap(found)[0]
        else:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(self, name)

    def _sent_trace(self) -> str:
        return self._record.unwrapped[1]

    @property
    def record(self) -> Record:
        """The result of its sends, as it is stored."""
        return self._record


class Selection(NamedTuple):
    """Some rows of a claim."""

    claim: Claim
    rows: Sequence[int]

    def deliveries(self) -> list[Delivery]:
        """Return the deliveries of the rows."""
        return self.claim.deliveries(self.rows)


def select(deliveries: Iterable[Delivery]) -> list[Selection]:
    """Return the claims of deliveries with their rows, in the order of the deliveries; each row once."""
    rows: dict[Claim, dict[int, None]] = defaultdict(dict)
    for delivery in deliveries:
        rows[delivery.claim][delivery.row] = None
    return [Selection(claim, list(chosen)) for claim, chosen in rows.items()]


def mark(selections: Sequence[Selection], outcome: Outcome) -> None:
    """Give rows an outcome.

    Raises:
        AlreadySettledError: One of the rows was settled before; then no row has got the outcome.
    """
    for claim, rows in selections:
        if len(claim.open_rows(rows)) < len(rows):
            for delivery in claim.deliveries(rows):
                delivery.refuse_if_settled()
    for claim, rows in selections:
        for row in rows:
            claim.outcomes[row] = outcome


def settle_open(selections: Iterable[Selection], outcome: Outcome) -> None:
    """Give an outcome to those rows that have none yet."""
    for claim, rows in selections:
        claim.settle_open(outcome, rows)


def deliveries_of(selections: Iterable[Selection]) -> list[Delivery]:
    """Return the deliveries of the selected rows."""
    found: list[Delivery] = []
    for claim, rows in selections:
        found += claim.deliveries(rows)
    return found


def whole(claim: Claim) -> Selection:
    """Return all rows of a claim."""
    return Selection(claim, range(len(claim.outcomes)))


def bytes_of(selections: Iterable[Selection]) -> int:
    """Return the size of rows in bytes: contents, and bodies or items."""
    return sum([claim.bytes_of(rows) for claim, rows in selections])


def size_of(selections: Iterable[Selection]) -> int:
    """Return the number of the selected rows."""
    return sum([len(rows) for _, rows in selections])


def cut(selections: Sequence[Selection], most: int) -> tuple[list[Selection], list[Selection]]:
    """Divide selections: up to `most` rows, and the rest."""
    taken: list[Selection] = []
    rest: list[Selection] = []
    for claim, rows in selections:
        if most > 0:
            taken.append(Selection(claim, rows[:most]))
        if len(rows) > max(0, most):
            rest.append(Selection(claim, rows[max(0, most) :]))
        most -= len(rows)
    return taken, rest


V = TypeVar("V")

Settle: TypeAlias = Callable[[Sequence[Selection], Outcome], Sequence[Selection]]
"""Function that settles rows with an outcome, and returns those whose lease was lost before."""


class ColumnFacts:
    """What is known of deliveries as columns: all of `DeliveryColumns` but their settlement."""

    __slots__ = ("_bodies", "_deliveries", "_places", "_read", "_selections", "_settle", "contents", "topic")

    topic: Topic
    contents: list[bytes]

    def __init__(self, topic: Topic, selections: Sequence[Selection], settle: Settle | None = None) -> None:
        self.topic = topic
        self._selections, self._settle = selections, settle
        self._deliveries: list[Delivery] | None = None
        self._places: list[tuple[Claim, int]] | None = None
        self._bodies: list[bytes | None] | None = None
        self._read: list[Record] | None = None
        self.contents = self._rows(lambda claim: claim.rows.contents)

    def __len__(self) -> int:
        return len(self.contents)

    @property
    def bodies(self) -> list[bytes | None]:
        """Bodies in bytes, `None` for a row without one."""
        if self._bodies is None:
            if self.topic.merge is None:
                self._bodies = [
                    body if body is None or not body.startswith(TRACE_MARK) else unwrap(body)[0]
                    for body in self._stored()
                ]
            else:
                self._bodies = [record.unwrapped[0] for record in self._records()]
        return self._bodies

    @property
    def slots(self) -> list[int]:
        """Slot of each row."""
        return self._column(lambda claim: claim.slot)

    @property
    def attempts(self) -> list[int]:
        """Attempt number of each row, 1 for the first delivery of a message."""
        most = self.topic.max_retries + 1
        return [most - left for left in self.retries_left]

    @property
    def retries_left(self) -> list[int]:
        """Number of retries left if the delivery fails; 0 if the message would be dead."""
        return self._column(lambda claim: retries_left_of(claim.score))

    @property
    def due_ms(self) -> list[int | None]:
        """Due times, epoch ms; `None` on a PRIORITY topic and for a retry."""
        timed, most = self.topic.type.timed, self.topic.max_retries
        return [score if timed and score > most else None for score in self._scores()]

    @property
    def priorities(self) -> list[int | None]:
        """Priorities; `None` on time topics and for a retry."""
        timed, most, ages = self.topic.type.timed, self.topic.max_retries, ages_for(self.topic.max_priority)
        return [ages.priority_of(score) if not timed and score > most else None for score in self._scores()]

    @property
    def values(self) -> list[Any]:
        """Results of the merged sends, see `Delivery.value`; the bodies if the topic has no `merge`."""
        if self.topic.merge is None:
            return self.bodies
        if all([claim.numbers for claim, _ in self._selections]):
            return self._rows(lambda claim: claim.numbers)
        return [*map(value_of, self._records(), self.bodies)]

    @property
    def merged(self) -> list[int]:
        """Number of sends merged into each row; always 1 without the topic's `merge`, as they are not counted."""
        return [1] * len(self) if self.topic.merge is None else [record.count for record in self._records()]

    @property
    def claimed_ms(self) -> list[int]:
        """Times of the claims by Redis' clock, epoch ms."""
        return self._column(lambda claim: claim.claimed_ms)

    @property
    def fencing_tokens(self) -> list[int | None]:
        """Fencing token of each row, `None` without owners; see `Delivery.fencing_token`."""
        return self._column(lambda claim: claim.owner.fencing_token)

    @property
    def lost(self) -> list[bool]:
        """Whether each lease is known to be lost: then another consumer may have the message.

        Check it before side effects that must occur once.
        """
        return [*map(bool, self._rows(lambda claim: claim.lost))]

    def _stored(self) -> list[bytes | None]:
        """Return the bodies as they are stored."""
        return self._rows(lambda claim: claim.rows.bodies or [None] * len(claim))

    def _records(self) -> list[Record]:
        """Return the records of a topic with `merge`."""
        if self._read is None:
            self._read = [read_record(body) for body in self._stored()]
        return self._read

    def _all_places(self) -> list[tuple[Claim, int]]:
        """Return the claim of each row, and its row there."""
        if self._places is None:
            self._places = [(claim, row) for claim, own in self._selections for row in own]
        return self._places

    def _rows(self, column_of: Callable[[Claim], Sequence[V]]) -> list[V]:
        """Return a column of the claims."""
        found: list[V] = []
        for claim, rows in self._selections:
            column = column_of(claim)
            found += column if len(rows) == len(column) else [column[row] for row in rows]
        return found

    def _column(self, value_of: Callable[[Claim], V]) -> list[V]:
        """Return, for each row, a value that all messages of its claim share."""
        return [value for claim, rows in self._selections for value in [value_of(claim)] * len(rows)]

    def _scores(self) -> list[int]:
        return self._rows(lambda claim: claim.rows.scores)

    def __repr__(self) -> str:
        return f"<DeliveryColumns of {self.topic.name}, {len(self)} rows>"


class DeliveryColumns(ColumnFacts):
    """Deliveries as columns: each list has one value per delivery (row). Do not change the lists.

    Call `ack` when all rows are done, or `nack` some rows and ack the rest.

    Attributes:
        topic: The topic's definition.
        contents: Contents in bytes.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send_columns(["a", "b"], priorities=[1, 2])
        >>> columns = client.consumer(jobs).poll_columns(timeout=5)
        >>> columns.contents, columns.priorities, columns.ack()
        ([b'b', b'a'], [2, 1], [])
    """

    __slots__ = ()

    @property
    def deliveries(self) -> list[Delivery]:
        """A `Delivery` for each row, always the same objects; creating them costs the time that columns save."""
        if self._deliveries is None:
            self._deliveries = deliveries_of(self._selections)
        return self._deliveries.copy()

    def ack(self, rows: Iterable[int] | None = None) -> list[int]:
        """Acknowledge rows: their messages are done and leave the queue.

        Args:
            rows: Indexes of rows, from 0; by default all that are not settled.

        Returns:
            The rows whose lease was lost before: nothing changed for them, and their messages are or will be delivered
            again. In a handler always empty: the listener collects outcomes and sends them with its next call.

        Raises:
            InvalidValueError: There is no such row; nothing was acked.
            AlreadySettledError: One of the given rows was settled before; nothing was acked.
            RmqError: As for `Consumer.ack`.
        """
        return self._end(rows, ACKED)

    def nack(
        self, rows: Iterable[int] | None = None, delay: Duration | None = None, error: BaseException | str = ""
    ) -> list[int]:
        """Report failures: the messages are retried, or dead if no retry is left.

        Args:
            rows: As for `ack`.
            delay: Wait before the retry: a `timedelta` or a text such as "30s"; "0s" for at once, `None` for the
                topic's policy.
            error: The reason, for the dead letters.

        Returns:
            The rows whose lease was lost before, as for `ack`.

        Raises:
            InvalidValueError: There is no such row, or the delay is negative or over 100 years; nothing was nacked.
            AlreadySettledError: One of the given rows was settled before; nothing was nacked.
            RmqError: As for `Consumer.ack`.
        """
        delay_ms = None if delay is None else duration_ms(delay, "delay")
        return self._end(rows, failed(Verb.NACK, delay_ms, error, self.topic.keep_attempts))

    def bury(self, rows: Iterable[int] | None = None, error: BaseException | str = "") -> list[int]:
        """Move the messages to the dead letters at once, even if retries are left. Returns and raises like `ack`."""
        return self._end(rows, failed(Verb.BURY, 0, error, self.topic.keep_attempts))

    def release(self, rows: Iterable[int] | None = None) -> list[int]:
        """Return the messages to the queue as they were, without using up a retry. Returns and raises like `ack`."""
        return self._end(rows, RELEASED)

    def _end(self, rows: Iterable[int] | None, outcome: Outcome) -> list[int]:
        if rows is None:
            wanted = [Selection(claim, claim.open_rows(own)) for claim, own in self._selections]
        else:
            wanted = self._chosen(rows)
        if self._settle is None:
            mark(wanted, outcome)
            return []
        lost = {(claim, row) for claim, own in self._settle(wanted, outcome) for row in own}
        return [index for index, place in enumerate(self._all_places()) if place in lost] if lost else []

    def _chosen(self, rows: Iterable[int]) -> list[Selection]:
        """Return the claims of rows; raise `InvalidValueError` if there is no such row."""
        chosen: dict[Claim, list[int]] = defaultdict(list)
        places = self._all_places()
        for row in dict.fromkeys(rows):
            if type(row) is not int or not 0 <= row < len(places):
                raise InvalidValueError(f"row is {row!r}; it must be a whole number of 0 or more, below {len(places)}")
            claim, own = places[row]
            chosen[claim].append(own)
        return [Selection(claim, own) for claim, own in chosen.items()]
