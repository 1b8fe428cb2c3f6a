"""The last day of every topic, minute by minute: a bounded ring of a few bytes a minute, in Redis itself.

Every process that runs listeners or the dashboard runs a `Recorder`. Of all of them one records each minute: who takes
the turn is decided by one script, by Redis' clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields

from rmq._admin.inspection import Inspection
from rmq._admin.stream_view import StreamView
from rmq._broker import shared
from rmq._broker.keys import history_key
from rmq._broker.registry import Registry, check_name
from rmq._io.backend import Background
from rmq._model.checks import check_whole
from rmq._model.figures import GroupStats, StreamStats, TopicStats
from rmq._model.reports import reporter
from rmq._model.times import MAX_SCORE
from rmq._model.topics import Topic, TopicType
from rmq._transport.connections import Connections
from rmq.errors import RmqError

log = reporter("rmq.history")

MINUTES = 1_440
"""Records kept: a day."""

KEEP_S = 2 * MINUTES * 60
"""A ring that nobody writes to, such as that of a topic that is gone, goes after so long."""

LONGEST_WAIT_S = 60.0
LATEST_S = 5.0
"""How far the processes spread what they ask at the turn of the minute."""


@dataclass(frozen=True, slots=True)
class Minute:
    """A topic, or all topics together, at one moment of a minute.

    Attributes:
        minute: Minutes since the epoch.
        backlog: Messages in store; of a stream topic, entries that its groups have not read yet.
        due_now: Those of them that may be delivered now.
        late_ms: How long the oldest due message has been due, ms.
        in_flight: Claimed messages.
        waiting: Failed messages that wait for their retry.
        dead: Dead messages.
        accepted: Sends since the topic began; the following are counted likewise.
        merged: Sends that merged.
        acked: Deliveries that were done.
        retried: Deliveries that failed and are to be repeated.
        buried: Messages that died.

    Examples:
        >>> client.history().last("jobs", minutes=60)  # nobody has recorded yet
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

    def to_bytes(self) -> bytes:
        """Return the record as it is kept: whole numbers with spaces between them, about 40 bytes."""
        return " ".join(map(str, astuple(self))).encode()

    @classmethod
    def from_bytes(cls, record: bytes) -> Minute | None:
        """Read a record; `None` where it is none."""
        try:
            figures = [int(figure) for figure in record.split()[: len(fields(cls))]]
            known = len(figures) == len(fields(cls)) and all(0 <= figure < 2**53 for figure in figures)
            return cls(*figures) if known else None
        except (TypeError, ValueError):
            return None


def minute_of(stats: TopicStats, minute: int) -> Minute:
    """Return a topic's record."""
    totals = (stats.total(name) for name in ("accepted", "merged", "acked", "retried", "buried"))
    sizes = (stats.backlog, stats.due_now, stats.lateness_ms, stats.in_flight, stats.waiting, stats.dead)
    return Minute(minute, *sizes, *totals)


def minute_of_stream(stats: StreamStats, groups: Sequence[GroupStats], minute: int) -> Minute:
    """Return a stream topic's record: what its groups have before them and in hand, in sum."""
    lag = sum(group.lag or 0 for group in groups)
    sizes = {name: sum(getattr(group, name) for group in groups) for name in ("in_flight", "waiting", "dead")}
    totals = {name: sum(group.total(name) for group in groups) for name in ("acked", "retried", "buried")}
    return Minute(minute, lag, lag, accepted=stats.total("accepted"), **sizes, **totals)


def sum_of(minute: int, parts: Iterable[Minute]) -> Minute:
    """Return all topics as one record; the lateness is that of the latest."""
    minutes = list(parts)
    names = [field.name for field in fields(Minute) if field.name not in ("minute", "late_ms")]
    sums = {name: sum(getattr(part, name) for part in minutes) for name in names}
    return Minute(minute, late_ms=max((part.late_ms for part in minutes), default=0), **sums)


class History:
    """Reads and records the last day.

    Examples:
        >>> client.record_history()  # by one process, as long as it runs
        >>> client.history().last(minutes=60)
        []
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._registry = Registry(connections)

    def last(self, topic: str | None = None, minutes: int = MINUTES) -> list[Minute]:
        """Return the last records of a topic, or of all topics together, the oldest first; some may be missing."""
        check_whole("minutes", minutes, MAX_SCORE)
        if topic is not None:
            check_name(topic)
        records: Sequence[bytes] = self._connections.command("LRANGE", history_key(topic), -minutes, -1)
        return [minute for minute in map(Minute.from_bytes, records) if minute is not None]

    def take_turn(self) -> tuple[int, int | None]:
        """Return Redis' time, epoch ms, and the minute to record, `None` when somebody else does it."""
        return self._connections.run(shared.take_history_turn(KEEP_S))

    def record(self, minute: int) -> list[Minute]:
        """Read all topics and append their records and their sum; return the topics' records.

        Guarantee: a minute that is recorded already stays as it is.
        """
        check_whole("minute", minute, MAX_SCORE)
        minutes: list[Minute] = []
        for topic in self._registry.definitions().topics:
            try:
                record = self._read(topic, minute)
                minutes.append(record)
                self.append(topic.name, record)
            except RmqError as error:  # one topic that cannot be read or written shall not cost the others' minute
                log.debug("history of topic %s: %s", topic.name, error)
        self.append(None, sum_of(minute, minutes))
        return minutes

    def _read(self, topic: Topic, minute: int) -> Minute:
        if topic.type is TopicType.STREAM:
            return minute_of_stream(*StreamView(self._connections, topic).with_groups(), minute)
        return minute_of(Inspection(self._connections, topic).stats(), minute)

    def append(self, topic: str | None, record: Minute) -> bool:
        """Append a record to a ring; return whether it was new. Atomic; safe to repeat."""
        return self._connections.run(shared.append_history(topic, record.minute, record.to_bytes(), MINUTES, KEEP_S))


class Recording:
    """Whether this process takes part in recording, and its `Recorder`.

    Args:
        connections: Where.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._recorder: Recorder | None = None

    @property
    def runs(self) -> bool:
        """Whether it takes part."""
        return self._recorder is not None

    def start(self, finished: Callable[[], int] | None) -> None:
        """Take part, if it does not yet; `finished` as of `Recorder`."""
        if self._recorder is None:
            self._recorder = Recorder(self._connections, finished)
            self._recorder.start()

    def stop(self) -> None:
        """Take part no more; does not wait for a recording under way."""
        if self._recorder is not None:
            self._recorder.stop()
            self._recorder = None

    def forget(self) -> None:
        """Take part no more; the recorder's event loop is closed."""
        self._recorder = None


class Recorder(Background):
    """Records a minute whenever it gets the turn, until it is stopped.

    Args:
        connections: Where.
        finished: Tells how many deliveries this process has finished: a minute in which that stays as it is is left to
            others. By default each minute is recorded.
    """

    def __init__(self, connections: Connections, finished: Callable[[], int] | None = None) -> None:
        super().__init__(connections.runtime, "rmq-history")
        self._finished = finished
        self._before = 0
        self._history = History(connections)
        self._stopping = connections.runtime.event()

    def run(self) -> None:
        """Wait for the next minute, try to get its turn, record it."""
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
            except RmqError as error:  # figures for people: the work goes on without them
                log.debug("this minute's figures are not recorded: %s", error)

    def _is_idle(self) -> bool:
        """Return whether nothing was handled since the last call, and the minute is left to others therefore."""
        if self._finished is None:
            return False
        before, self._before = self._before, self._finished()
        return self._before == before

    def stop(self) -> None:
        """End it; does not wait for a recording under way."""
        self._stopping.set()

    @staticmethod
    def _spread(most_s: float) -> float:
        return random.random() * most_s  # noqa: S311 - so that the processes do not all ask at once
