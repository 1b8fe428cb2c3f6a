"""Following stream topics without a group: entries as they arrive, of one topic or of several at once.

A tail knows after which id it reads on in each slot. It reads those slots of which a hint says that something was sent,
and all of them once a second, since hints may get lost. However many topics it follows, the hints of all come over one
connection to each server, and one round trip reads up to `TRIP` slots. What a look holds at once is bounded by its
bytes; slots that it did not come to are the first ones of the next look.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from rmq._admin.stream_view import PAGE, StreamView
from rmq._broker import streams as scripts
from rmq._broker.each import call_each, checked_slots
from rmq._claiming.wake_hints import HintReader
from rmq._model.display import brief
from rmq._model.entries import Position, StreamEntry, id_key, position
from rmq._model.times import MAX_SCORE, monotonic_s, seconds
from rmq._model.topics import Topic
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq.errors import InvalidValueError

LOOK_EVERY_S = 1.0
"""How often a reader of the tail looks by itself, since hints may get lost."""

TRIP = 8
"""Slots read in one round trip: each may bring 4 MiB."""

LOOK_BYTES = 16 * 1_048_576
"""So many bytes of entries end a look."""


@dataclass(slots=True)
class _Place:
    """A slot of a topic, and the range that is left to read: from there on, as Redis writes it."""

    topic: Topic
    slot: int
    after: str


def tail_all(
    streams: Iterable[StreamView], start: Position | None = None, timeout: float | timedelta | None = None
) -> Iterator[StreamEntry]:
    """Yield entries of several stream topics as they arrive, in one read. `entry.topic` says of which topic each is.

    Args:
        streams: What `RmqClient.stream` returns, of one client; one at least.
        start: Begin after this id, or at this time, in each topic; with what is sent from now on by default.
        timeout: End when nothing has arrived in any topic for so long, in seconds or as a `timedelta`; never by
            default.

    Raises:
        InvalidValueError: No streams, or of several clients; `start` is neither an id nor a time.

    Guarantee: entries of one slot of a topic come in the order of their ids, each once. Between slots and topics, those
        that one look finds are ordered by id, that is, by time; an entry that is found later may have a smaller id.
        To close the iterator, or to leave its loop, gives its connection back.

    Examples:
        >>> clicks, orders = Topic("clicks", TopicType.STREAM), Topic("orders", TopicType.STREAM)
        >>> for topic in (clicks, orders):
        ...     _ = client.producer(topic).send(StreamMessage(f"one of {topic.name}"))
        >>> [entry.text for entry in tail_all([client.stream(clicks), client.stream(orders)], start=1, timeout=0)]
        ['one of clicks', 'one of orders']
    """
    views = list(streams)
    if not views:
        raise InvalidValueError("streams is empty; name one at least")
    for each in views:
        if not isinstance(each, StreamView):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"streams has {brief(each, 100)}; each must be what `RmqClient.stream` returns")
    if any(each._connections is not views[0]._connections for each in views):
        raise InvalidValueError("streams are of several clients; one tail follows the topics of one client")
    return tail_of([(each, None) for each in {each.topic.name: each for each in views}.values()], start, timeout)


def tail_of(
    wanted: Sequence[tuple[StreamView, Iterable[int] | None]],
    start: Position | None,
    timeout: float | timedelta | None,
) -> Iterator[StreamEntry]:
    """Begin to follow slots of topics now, and not when the first entry is asked for."""
    longest_s = MAX_SCORE if timeout is None else seconds(timeout, "timeout")
    first = None if start is None else position(start, "start")
    places: list[_Place] = []
    for view, slots in wanted:
        chosen = checked_slots(view.topic, slots)
        if first is not None:
            after = f"({first}" if isinstance(start, str) else first
            places += (_Place(view.topic, slot, after) for slot in chosen)
            continue
        for each in view.stats(chosen).slots:
            places.append(_Place(view.topic, each.slot, f"({each.last_id}" if each.last_id else "-"))
    return _follow(wanted[0][0]._connections, places, longest_s)


def _follow(connections: Connections, places: Sequence[_Place], longest_s: float) -> Iterator[StreamEntry]:
    hints = HintReader.of_places(connections, [(place.topic.name, place.slot) for place in places])
    try:
        due, until_s = [*places], monotonic_s() + longest_s
        while True:
            hints.read(0)  # subscribes before the look, so that nothing falls in between
            found, due = _look(connections, due)
            yield from found
            now_s = monotonic_s()
            if found:
                until_s = now_s + longest_s
            if found or due:
                continue
            if now_s >= until_s:
                return
            heard = hints.read(min(LOOK_EVERY_S, until_s - now_s))
            numbers = set[int]() if heard.missed else {number for number, _ in heard.due}
            due = [places[number] for number in sorted(numbers)] or [*places]
    finally:
        hints.close()


def _look(connections: Connections, due: list[_Place]) -> tuple[list[StreamEntry], list[_Place]]:
    """Read a page of each place, up to a number of bytes; return the entries, and the places that may have more."""
    found: list[StreamEntry] = []
    more: list[_Place] = []
    size_bytes = looked = 0
    while looked < len(due) and size_bytes < LOOK_BYTES:
        part = due[looked : looked + TRIP]
        looked += TRIP
        for place, page in zip(part, call_each(connections, part, _page), strict=True):
            if page:
                place.after = f"({page[-1].id}"
                found += page
                more.append(place)
                size_bytes += sum(len(value) for entry in page for value in entry.flat)
    found.sort(key=lambda entry: id_key(entry.id))
    return found, due[looked:] + more


def _page(place: _Place) -> Call[list[StreamEntry]]:
    return scripts.read_range(place.topic, place.slot, place.after, "+", PAGE, down=False)
