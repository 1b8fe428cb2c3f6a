"""Deliveries as columns: the messages of one claim as one object, and the columns that handlers and consumers get."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from threading import Lock
from typing import Any, TypeAlias, TypeVar

from rmq._model.deliveries import ACKED, RELEASED, Delivery, Holder, Outcome, Verb, describe
from rmq._model.records import TRACE_MARK, unwrap
from rmq._model.replies import NO_OWNER, ClaimedRows, Owner
from rmq._model.scores import ages_for
from rmq._model.times import Duration, duration_ms
from rmq._model.topics import Topic
from rmq.errors import InvalidValueError

_SPREADING = Lock()
"""Held while columns are split into deliveries, by the lease keeper or by a handler; no code blocks meanwhile."""


class ClaimColumns(Delivery):
    """The messages of a claim with one claim score. If they are acked as a whole, no object is created for each.

    If a message gets an outcome, a lease or an error of its own, `each` creates a delivery for every message. The
    deliveries replace the columns from then on, and take their outcome unless they have one of their own.

    Attributes:
        rows: The claimed rows.
    """

    __slots__ = ("_each", "_outcome", "rows")

    def __init__(
        self,
        topic: Topic,
        slot: int,
        rows: ClaimedRows,
        claimed_ms: int,
        lease_until_s: float,
        holder: Holder,
        owner: Owner = NO_OWNER,
    ) -> None:
        self._each: list[Delivery] | None = None
        self._outcome: Outcome | None = None
        super().__init__(topic, slot, rows[0], claimed_ms, lease_until_s, holder, owner)
        self.rows = rows

    @property
    def name(self) -> bytes:
        """Empty: replies by name never refer to a columnar claim."""
        return b""

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of all messages without one of their own."""
        return self._outcome

    @outcome.setter
    def outcome(self, outcome: Outcome | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._outcome = outcome
        self._hand_down()

    @property
    def is_spread(self) -> bool:
        """True once there is a delivery for each message."""
        return self._each is not None

    def must_spread(self, now_s: float) -> bool:
        """Return whether the messages must be settled one by one: only acks within the lease settle whole claims."""
        if self._each is not None:
            return True
        whole = self._outcome is ACKED and not self.ack_individually and self.lease_until_s >= now_s
        return self._outcome is not None and not (whole and len(self.rows) > 1)

    def each(self) -> list[Delivery]:
        """Return a delivery for each message, always the same objects."""
        if self._each is not None:
            return self._each
        with _SPREADING:
            if self._each is None:
                shared = (self.claimed_ms, self.lease_until_s, self._holder, self.owner)
                made = [Delivery(self.topic, self.slot, claimed, *shared) for claimed in self.rows]
                for delivery in made:
                    delivery.ack_individually, delivery.lost = self.ack_individually, self.lost
                self._each = made
                self.ack_individually = True  # so these are settled in place of the columns
        self._hand_down()  # an outcome may have been noted meanwhile
        return self._each

    def bodies(self) -> list[bytes | None]:
        """Return the bodies, without the trace contexts before them."""
        bodies = self.rows.bodies
        if not bodies:
            return [None] * len(self.rows)
        return [body if body is None or not body.startswith(TRACE_MARK) else unwrap(body)[0] for body in bodies]

    def traces(self) -> list[str]:
        """Return the trace contexts, empty for none."""
        return [unwrap(body)[1] for body in self.rows.bodies] or [""] * len(self.rows)

    def _hand_down(self) -> None:
        if self._each is not None and self._outcome is not None:
            for delivery in self._each:
                if delivery.outcome is None:
                    delivery.outcome = self._outcome


def spread(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """Return one delivery per message."""
    given = list(deliveries)
    if not _has_columns(given):
        return given
    return [one for each in given for one in (each.each() if isinstance(each, ClaimColumns) else (each,))]


def spread_some(deliveries: Sequence[Delivery], now_s: float) -> Sequence[Delivery]:
    """Split columns that cannot be settled as a whole into deliveries, except those with a request under way."""
    if not _has_columns(deliveries):
        return deliveries
    found: list[Delivery] = []
    for each in deliveries:
        if isinstance(each, ClaimColumns) and not each.under_way and each.must_spread(now_s):
            found += each.each()
        else:
            found.append(each)
    return found


def take_up_to(waiting: deque[Delivery], most: int) -> list[Delivery]:
    """Take up to `most` waiting messages; the first columns are taken whole even if they have more. Thread-safe."""
    taken: list[Delivery] = []
    number = 0
    try:
        while number < most:
            part = waiting.popleft()
            if isinstance(part, ClaimColumns) and part.is_spread:  # each has a lease of its own
                waiting.extendleft(reversed(part.each()))
            elif taken and number + number_of([part]) > most:
                waiting.appendleft(part)
                break
            else:
                taken.append(part)
                number += number_of([part])
    except IndexError:  # no more, or another thread was faster
        pass
    return taken


def number_of(deliveries: Sequence[Delivery]) -> int:
    """Return the number of messages of the deliveries."""
    if not _has_columns(deliveries):
        return len(deliveries)
    return sum([len(each.rows) if isinstance(each, ClaimColumns) else 1 for each in deliveries])


def size_of(deliveries: Sequence[Delivery]) -> tuple[int, int]:
    """Return the number of messages and the number of their slots."""
    return number_of(deliveries), len({delivery.slot for delivery in deliveries})


def _has_columns(deliveries: Sequence[Delivery]) -> bool:
    return ClaimColumns in set(map(type, deliveries))  # mostly there are none: nobody looks at each


V = TypeVar("V")

Settle: TypeAlias = Callable[[Sequence[Delivery], Outcome], Sequence[Delivery]]
"""Function that settles deliveries with an outcome, and returns those whose lease was lost before."""


class DeliveryColumns:
    """Deliveries as columns: each list has one value per delivery (row). Do not change the lists.

    Call `ack` when all rows are done, or `nack` some rows and ack the rest.

    Attributes:
        topic: The topic's definition.
        contents: Contents in bytes.
        bodies: Bodies in bytes, `None` for a row without one.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send_columns(["a", "b"], priorities=[1, 2])
        >>> columns = client.consumer(jobs).poll_columns(timeout=5)
        >>> columns.contents, columns.priorities, columns.ack()
        ([b'b', b'a'], [2, 1], [])
    """

    __slots__ = ("_parts", "_settle", "_starts", "bodies", "contents", "topic")

    topic: Topic
    contents: list[bytes]
    bodies: list[bytes | None]

    def __init__(self, topic: Topic, parts: Sequence[Delivery], settle: Settle | None = None) -> None:
        self.topic = topic
        self.contents, self.bodies = [], []
        self._parts, self._settle = tuple(parts), settle
        for part in parts:
            if isinstance(part, ClaimColumns):
                self.contents += part.rows.contents
                self.bodies += part.bodies()
            else:
                self.contents.append(part.content)
                self.bodies.append(part.body)
        sizes = (len(part.rows) if isinstance(part, ClaimColumns) else 1 for part in parts)
        self._starts = list(accumulate(sizes, initial=0))

    def __len__(self) -> int:
        return len(self.contents)

    @property
    def slots(self) -> list[int]:
        """Slot of each row."""
        return self._column(lambda part: part.slot)

    @property
    def attempts(self) -> list[int]:
        """Number of each delivery, 1 for the first of a message."""
        return self._column(lambda part: part.attempt)

    @property
    def retries_left(self) -> list[int]:
        """Number of retries left if the delivery fails; 0 if the message would be dead."""
        return self._column(lambda part: part.retries_left)

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
        return [value for part in self._parts for value in _values_of(part)]

    @property
    def merged(self) -> list[int]:
        """Number of sends merged into each row; always 1 without the topic's `merge`, as they are not counted."""
        return self._column(lambda part: part.merged)

    @property
    def claimed_ms(self) -> list[int]:
        """Times of the claims by Redis' clock, epoch ms."""
        return self._column(lambda part: part.claimed_ms)

    @property
    def fencing_tokens(self) -> list[int | None]:
        """Fencing token of each row, `None` without owners; see `Delivery.fencing_token`."""
        return self._column(lambda part: part.fencing_token)

    @property
    def lost(self) -> list[bool]:
        """Whether each lease is known to be lost: another consumer may have the message. Check it before an effect."""
        found: list[bool] = []
        for part in self._parts:
            if isinstance(part, ClaimColumns):
                found += [each.lost for each in part.each()] if part.is_spread else [part.lost] * len(part.rows)
            else:
                found.append(part.lost)
        return found

    @property
    def deliveries(self) -> list[Delivery]:
        """A `Delivery` for each row, always the same objects; creating them costs the time that columns save."""
        return spread(self._parts)

    def ack(self, rows: Iterable[int] | None = None) -> list[int]:
        """Acknowledge rows: their messages are done and leave the queue.

        Args:
            rows: Indexes of rows, from 0; by default all that are not settled.

        Returns:
            The rows whose lease was lost before: nothing changed for them, and their messages are or will be delivered
            again. In a listener always empty: it collects outcomes and sends them with its next call.

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
            The rows whose lease was lost before, as for `ack`. Raises like `ack`.
        """
        delay_ms = None if delay is None else duration_ms(delay, "delay")
        return self._end(rows, Outcome(Verb.NACK, delay_ms, *describe(error)))

    def bury(self, rows: Iterable[int] | None = None, error: BaseException | str = "") -> list[int]:
        """Move the messages to the dead letters at once, even if retries are left. Returns and raises like `ack`."""
        return self._end(rows, Outcome(Verb.BURY, 0, *describe(error)))

    def release(self, rows: Iterable[int] | None = None) -> list[int]:
        """Return the messages to the queue as they were, without using up a retry. Returns and raises like `ack`."""
        return self._end(rows, RELEASED)

    def _end(self, rows: Iterable[int] | None, outcome: Outcome) -> list[int]:
        wanted = self._open() if rows is None else [self._delivery(row) for row in dict.fromkeys(rows)]
        if outcome is not ACKED:
            wanted = spread(wanted)
        for delivery in wanted:
            delivery.refuse_if_settled()  # before any is marked
        if self._settle is None:
            for delivery in wanted:
                delivery.outcome = outcome
            return []
        stale = set(map(id, self._settle(wanted, outcome)))
        return [row for row, delivery in enumerate(self.deliveries) if id(delivery) in stale] if stale else []

    def _open(self) -> list[Delivery]:
        """Return the unsettled deliveries; columns that are not split stay as they are."""
        parts: list[Delivery] = []
        for part in self._parts:
            parts += part.each() if isinstance(part, ClaimColumns) and part.is_spread else (part,)
        return [part for part in parts if part.outcome is None]

    def _delivery(self, row: int) -> Delivery:
        if type(row) is not int or not 0 <= row < len(self.contents):
            raise InvalidValueError(f"row is {row!r}; it must be a whole number from 0 to {len(self.contents) - 1}")
        place = bisect_right(self._starts, row) - 1
        part = self._parts[place]
        return part.each()[row - self._starts[place]] if isinstance(part, ClaimColumns) else part

    def _column(self, value_of: Callable[[Delivery], V]) -> list[V]:
        """Return, for each row, a value that all messages of its claim share."""
        found: list[V] = []
        for part in self._parts:
            found += [value_of(part)] * (len(part.rows) if isinstance(part, ClaimColumns) else 1)
        return found

    def _scores(self) -> list[int]:
        found: list[int] = []
        for part in self._parts:
            found += part.rows.scores if isinstance(part, ClaimColumns) else (part.store_score,)
        return found

    def __repr__(self) -> str:
        return f"<DeliveryColumns of {self.topic.name}, {len(self)} rows>"


def _values_of(part: Delivery) -> Sequence[Any]:
    return part.bodies() if isinstance(part, ClaimColumns) else (part.value,)
