"""History of every topic for the last day: a bounded list in Redis, with a record of a few bytes per minute.

Every process that runs listeners or the dashboard runs a `Recorder`. One of them records each minute; a script chooses
it by Redis' clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from functools import partial
from itertools import islice
from secrets import token_hex

from rmq._admin.calls import viewing
from rmq._admin.figures import GroupStats, StreamStats, TopicStats
from rmq._admin.stream_view import StreamView
from rmq._broker.binding import BoundScript
from rmq._broker.keys import HISTORY_LOCK_KEY, history_key
from rmq._io.backend import Background
from rmq._io.reports import reporter
from rmq._model.retry import draw_jitter
from rmq._model.settings import check_whole
from rmq._model.times import MAX_SCORE
from rmq._model.topics import Topic, TopicType
from rmq._registry import shared
from rmq._registry.registry import Registry, check_name
from rmq._transport.call import Call, is_one
from rmq._transport.connections import Connections, run_slots
from rmq._transport.exchange import results_of
from rmq.errors import RmqError

log = reporter("rmq.history")

_WRITE = BoundScript("history_write")

MINUTES = 1_440
"""Number of records kept: a day."""

KEEP_S = 2 * MINUTES * 60
"""Expiry of a list that is no longer written, such as that of a deleted topic."""

LONGEST_WAIT_S = 60.0
_FEWEST_FIGURES = 12
"""Number of figures in the records of the first versions; later figures follow them."""

LATEST_S = 5.0
"""Processes spread their requests over this time after the turn of the minute."""


@dataclass(frozen=True, slots=True)
class Minute:
    """Figures of a topic, or of all topics together, recorded for one minute.

    Attributes:
        minute: Minutes since the epoch.
        backlog: Messages in the backlog; for a stream topic, entries that its groups have not read yet.
        due_now: Messages in the backlog that may be delivered now.
        late_ms: Time since the oldest due message became due, ms; 0 on PRIORITY and stream topics.
        in_flight: Messages in flight.
        waiting: Failed messages that wait for a retry.
        dead: Dead messages.
        accepted: Sends since the topic was created; the figures below count from then, too.
        merged: Sends that merged.
        acked: Deliveries that were acked.
        retried: Deliveries that failed and were retried.
        buried: Messages that became dead after failures.
        refailed: Failures of contents that had failed and were sent again; `None` on stream topics and in records of
            earlier versions.

    Examples:
        >>> client.history().last("jobs", minutes=60)  # nothing recorded yet
        []
    """

    minute: int
    backlog: int = 0
    due_now: int = 0
    late_ms: int = 0
    in_flight: int = 0
    waiting: int = 0
    dead: int = 0
    accepted: int = 0
    merged: int = 0
    acked: int = 0
    retried: int = 0
    buried: int = 0
    refailed: int | None = None

    def to_bytes(self) -> bytes:
        """Encode the record as whole numbers separated by spaces, about 40 bytes."""
        return " ".join(str(figure) for figure in astuple(self) if figure is not None).encode()

    @classmethod
    def from_bytes(cls, record: bytes) -> Minute | None:
        """Decode a record; return `None` if it is invalid."""
        try:
            figures = [int(figure) for figure in record.split()[: len(fields(cls))]]
            known = len(figures) >= _FEWEST_FIGURES and all(0 <= figure < 2**53 for figure in figures)
            return cls(*figures) if known else None
        except (TypeError, ValueError):
            return None


def minute_of(minute: int, stats: TopicStats | StreamStats, groups: Sequence[GroupStats] = ()) -> Minute:
    """Return the record of a topic's figures; those of a stream topic are the sums over its groups."""
    if isinstance(stats, StreamStats):
        lag = sum(group.lag or 0 for group in groups)
        parts = {name: sum(getattr(group, name) for group in groups) for name in ("in_flight", "waiting", "dead")}
        parts |= {name: sum(group.total(name) for group in groups) for name in ("acked", "retried", "buried")}
        return Minute(minute, lag, lag, accepted=stats.total("accepted"), **parts)
    totals = (stats.total(name) for name in ("accepted", "merged", "acked", "retried", "buried", "refailed"))
    sizes = (stats.backlog, stats.due_now, stats.lateness_ms, stats.in_flight, stats.waiting, stats.dead)
    return Minute(minute, *sizes, *totals)


def sum_of(minute: int, parts: Iterable[Minute]) -> Minute:
    """Return the sum of records, with the maximum of their lateness."""
    minutes = list(parts)
    names = [field.name for field in fields(Minute) if field.name not in ("minute", "late_ms")]
    sums = {name: sum(getattr(part, name) or 0 for part in minutes) for name in names}
    return Minute(minute, late_ms=max((part.late_ms for part in minutes), default=0), **sums)


class History:
    """Reads and writes the history: the figures of each topic, one record per minute, for the last day.

    Examples:
        >>> client.record_history()  # in one process, until it ends
        >>> client.history().last(minutes=60)
        []
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._registry = Registry(connections)

    def last(self, topic: str | None = None, minutes: int = MINUTES) -> list[Minute]:
        """Return the last records of a topic, or of all topics together, oldest first; empty if there are none.

        There are up to `minutes` records, by default those of a day. A minute in which no process recorded is missing.

        Raises:
            InvalidValueError: `topic` is not a valid topic name, or `minutes` is not a whole number of 1 or more.
        """
        check_whole("minutes", minutes, MAX_SCORE)
        if topic is not None:
            check_name(topic)
        records: Sequence[bytes] = self._connections.command("LRANGE", history_key(topic), -minutes, -1)
        return [minute for minute in map(Minute.from_bytes, records) if minute is not None]

    def take_turn(self) -> tuple[int, int | None]:
        """Return Redis' time, epoch ms, and the minute to record, which is `None` if another process records it."""
        holder = token_hex(8)
        lock = self._connections.run(shared.take_lock(HISTORY_LOCK_KEY, "minute", holder, 60_000, "period"))
        return lock.now_ms, lock.till_ms // 60_000 - 1 if lock.holder == holder else None

    def record(self, minute: int) -> list[Minute]:
        """Append the figures of each topic, and their sum, to the history; return those of the topics.

        Topics that cannot be read are left out.

        Args:
            minute: The minute to record, in minutes since 1970-01-01 UTC.

        Raises:
            InvalidValueError: `minute` is not a whole number of 1 or more.

        Guarantee: a minute that has been recorded already is not changed.
        """
        check_whole("minute", minute, MAX_SCORE)
        records = {topic.name: record for topic, record in self._read(self._registry.definitions().topics, minute)}
        minutes = [*records.values()]
        written = [*records.items(), (None, sum_of(minute, minutes))]
        calls = (_append(name, record) for name, record in written)
        for reply in run_slots(self._connections, calls, partial(viewing.joined, per_slot=1)):
            if isinstance(reply, RmqError):  # an error of one topic must not prevent the others' records
                log.debug("cannot record the history: %s", reply)
        return minutes

    def append(self, topic: str | None, record: Minute) -> bool:
        """Append a record of a topic, or with `None` of all topics together; return whether its minute was new.

        Guarantee: atomic; safe to repeat.
        """
        return self._connections.run(_append(topic, record))

    def _read(self, topics: Sequence[Topic], minute: int) -> Iterator[tuple[Topic, Minute]]:
        """Yield the figures of topics: those of all slots that one script may access are read together."""
        queues = (topic for topic in topics if topic.type is not TopicType.STREAM)
        calls = (viewing.stats(topic, slot) for topic in queues for slot in range(topic.slots))
        figures = run_slots(self._connections, calls, viewing.joined_stats)
        for topic in topics:
            slots = [] if topic.type is TopicType.STREAM else [*islice(figures, topic.slots)]
            try:
                if topic.type is TopicType.STREAM:
                    yield topic, minute_of(minute, *StreamView(self._connections, topic).with_groups())
                else:
                    yield topic, minute_of(minute, TopicStats(topic, tuple(results_of(slots))))
            except RmqError as error:
                log.debug("cannot record the history of topic %s: %s", topic.name, error)


class Recording:
    """The `Recorder` of this process, if it takes part in recording.

    Args:
        connections: Connections of the client.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._recorder: Recorder | None = None

    @property
    def runs(self) -> bool:
        """True if this process takes part."""
        return self._recorder is not None

    def start(self, finished: Callable[[], int] | None) -> None:
        """Start the recorder, if it is not running. `finished` as for `Recorder`."""
        self._connections.refuse_misuse()
        if self._recorder is None:
            self._recorder = Recorder(self._connections, finished)
            self._recorder.start()

    def stop(self) -> None:
        """Stop the recorder, without waiting for a record in progress."""
        if self._recorder is not None:
            self._recorder.request_stop()
            self._recorder = None

    def forget(self) -> None:
        """Drop the recorder without stopping it, since its event loop is closed."""
        self._recorder = None


class Recorder(Background):
    """Records the minutes for which this process is chosen, until it is stopped.

    Args:
        connections: Connections of the client.
        finished: Returns the number of deliveries that this process has finished. It does not record minutes in which
            the number stays the same. By default it records every minute.
    """

    def __init__(self, connections: Connections, finished: Callable[[], int] | None = None) -> None:
        super().__init__(connections.runtime, "rmq-history")
        self._finished = finished
        self._before = 0
        self._history = History(connections)

    def run(self) -> None:
        """Record every minute for which this process is chosen."""
        wait_s = self._spread(LATEST_S)
        while not self._stopping.wait(wait_s):
            wait_s = LONGEST_WAIT_S
            if self._is_idle():
                continue
            try:
                now_ms, minute = self._history.take_turn()
                wait_s = (60_000 - now_ms % 60_000) / 1_000 + self._spread(LATEST_S)
                if minute is not None:
                    self._history.record(minute)
            except RmqError as error:  # the history is not essential: messages are handled without it
                log.debug("cannot record this minute's history: %s", error)

    def _is_idle(self) -> bool:
        """Return whether no delivery was finished since the last call, so that other processes record the minute."""
        if self._finished is None:
            return False
        before, self._before = self._before, self._finished()
        return self._before == before

    @staticmethod
    def _spread(most_s: float) -> float:
        return draw_jitter() * most_s  # so that processes do not all send requests at once


def _append(topic: str | None, record: Minute) -> Call[bool]:
    """Return a call that appends a record to the list of a topic, or of all; its result is whether it was new."""

    def parse(reply: Sequence[bytes]) -> bool:
        return is_one(reply[0])

    records = (record.to_bytes(), record.minute, MINUTES, KEEP_S)
    return _WRITE.call_on(topic or "", parse, (history_key(topic),), records=records)
