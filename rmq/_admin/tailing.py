"""Follows stream topics without a group: yields entries of one or several topics as they arrive.

A tail keeps the last id read in each slot. It reads the slots for which a wake hint arrived, and all slots once a
second, since hints may be lost. The hints of all topics come over one connection per server, and one round trip reads
up to `TRIP` slots. The entries read at once are bounded in bytes; slots that were not reached are read first next time.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from rmq._admin.calls import stream_admin
from rmq._admin.stream_view import PAGE, StreamView
from rmq._claiming.wakeups import WakeupSubscriber
from rmq._model.display import brief
from rmq._model.entries import Position, StreamEntry, id_key, position
from rmq._model.times import MAX_SCORE, monotonic_s, seconds
from rmq._model.topics import Topic, checked_slots
from rmq._transport.call import Call
from rmq._transport.connections import Connections, call_slots
from rmq.errors import InvalidValueError

LOOK_EVERY_S = 1.0
"""Interval at which all slots are read, since hints may be lost."""

TRIP = 8
"""Slots read in one round trip; each may return 4 MiB."""

LOOK_BYTES = 16 * 1_048_576
"""Maximum bytes of entries read at once."""


@dataclass(slots=True)
class _Cursor:
    """A slot of a topic, with the start of the range to read next, in Redis' notation."""

    topic: Topic
    slot: int
    after: str


def tail_all(
    streams: Iterable[StreamView], start: Position | None = None, timeout: float | timedelta | None = None
) -> Iterator[StreamEntry]:
    """Yield entries of several stream topics as they arrive. `entry.topic` is the topic of an entry.

    Args:
        streams: Results of `RmqClient.stream` of one client; at least one.
        start: Start after this id, or at this time, in each topic; by default with entries sent from now on.
        timeout: End after this time without a new entry in any topic, in seconds or as a `timedelta`; never by default.

    Raises:
        InvalidValueError: `streams` is empty, of several clients, or has other objects than stream topics; `start` is
            neither an id nor a time, or `timeout` is negative.

    Guarantee: entries of one slot of a topic come in the order of their ids, each once. Across slots and topics,
        entries read together are ordered by id, that is, by time; an entry read later may have a smaller id. Closing
        the iterator, or leaving its loop, releases its connection.

    Examples:
        >>> clicks, orders = Topic("clicks", TopicType.STREAM), Topic("orders", TopicType.STREAM)
        >>> for topic in (clicks, orders):
        ...     _ = client.producer(topic).send(StreamMessage(f"one of {topic.name}"))
        >>> [entry.text for entry in tail_all([client.stream(clicks), client.stream(orders)], start=1, timeout=0)]
        ['one of clicks', 'one of orders']
    """
    views = list(streams)
    if not views:
        raise InvalidValueError("streams is empty; it must have at least one stream topic")
    for view in views:
        if not isinstance(view, StreamView):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"streams contains {brief(view, 100)}; all must be results of `RmqClient.stream`")
    if any(view._connections is not views[0]._connections for view in views):
        raise InvalidValueError("streams come from different clients; all must come from the same client")
    return tail_of([(view, None) for view in {view.topic.name: view for view in views}.values()], start, timeout)


def tail_of(
    views: Sequence[tuple[StreamView, Iterable[int] | None]],
    start: Position | None,
    timeout: float | timedelta | None,
) -> Iterator[StreamEntry]:
    """Follow slots of topics from the time of this call, not of the first `next`."""
    longest_s = MAX_SCORE if timeout is None else seconds(timeout, "timeout")
    first = None if start is None else position(start, "start")
    cursors: list[_Cursor] = []
    for view, slots in views:
        chosen = checked_slots(view.topic, slots)
        if first is not None:
            after = f"({first}" if isinstance(start, str) else first
            cursors += (_Cursor(view.topic, slot, after) for slot in chosen)
            continue
        for stats in view.stats(chosen).slots:
            cursors.append(_Cursor(view.topic, stats.slot, f"({stats.last_id}" if stats.last_id else "-"))
    return _follow(views[0][0]._connections, cursors, longest_s)


def _follow(connections: Connections, cursors: Sequence[_Cursor], longest_s: float) -> Iterator[StreamEntry]:
    hints = WakeupSubscriber.of_places(connections, [(cursor.topic.name, cursor.slot) for cursor in cursors])
    try:
        due, until_s = [*cursors], monotonic_s() + longest_s
        while True:
            hints.read(0)  # subscribe before reading, so that no entry is missed in between
            entries, due = _look(connections, due)
            yield from entries
            now_s = monotonic_s()
            if entries:
                until_s = now_s + longest_s
            if entries or due:
                continue
            if now_s >= until_s:
                return
            heard = hints.read(min(LOOK_EVERY_S, until_s - now_s))
            numbers = set[int]() if heard.missed else {number for number, _ in heard.due}
            due = [cursors[number] for number in sorted(numbers)] or [*cursors]
    finally:
        hints.close()


def _look(connections: Connections, due: list[_Cursor]) -> tuple[list[StreamEntry], list[_Cursor]]:
    """Read a page of each slot, up to `LOOK_BYTES`; return the entries, and the cursors that may have more."""
    entries: list[StreamEntry] = []
    more: list[_Cursor] = []
    size_bytes = looked = 0
    while looked < len(due) and size_bytes < LOOK_BYTES:
        part = due[looked : looked + TRIP]
        looked += TRIP
        for cursor, page in zip(part, call_slots(connections, part, _page), strict=True):
            if page:
                cursor.after = f"({page[-1].id}"
                entries += page
                more.append(cursor)
                size_bytes += sum(len(value) for entry in page for value in entry.flat)
    entries.sort(key=lambda entry: id_key(entry.id))
    return entries, due[looked:] + more


def _page(cursor: _Cursor) -> Call[list[StreamEntry]]:
    return stream_admin.read_range(cursor.topic, cursor.slot, cursor.after, "+", PAGE, down=False)
