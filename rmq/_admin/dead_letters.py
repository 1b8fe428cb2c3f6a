"""Dead letters: what failed for good, why, and how to send it again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from rmq import calls
from rmq.audit import Audit
from rmq.connections import Connections
from rmq.durations import MAX_SCORE, Duration, Instant, duration_ms, instant_ms
from rmq.errors import InvalidValueError
from rmq.messages import Payload, payload_bytes
from rmq.results import DeadMessage, Redriven
from rmq.slot import NACK_BATCH, SlotWriter
from rmq.topics import Topic

Progress = Callable[[int], None]
"""Called with the number of messages dealt with so far."""


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead messages are meant; without conditions, all.

    Attributes:
        contents: Exactly these contents.
        matching: Content, as text, matches this pattern with `*`, `?` and `[...]`.
        error_type: The last error had this type, e.g. `ValueError`.
        died_after: Died at this time or later: aware `datetime` or epoch ms.
        died_before: Died before this time: aware `datetime` or epoch ms.
    """

    contents: frozenset[bytes] | None = None
    matching: str | None = None
    error_type: str | None = None
    died_after: Instant | None = None
    died_before: Instant | None = None

    def __call__(self, message: DeadMessage) -> bool:
        """Return whether a dead message is meant."""
        if self.contents is not None and message.content not in self.contents:
            return False
        if self.matching is not None and not fnmatchcase(message.text, self.matching):
            return False
        if self.error_type is not None and message.error_type != self.error_type:
            return False
        if self.died_after is not None and message.died_ms < instant_ms(self.died_after, "died_after"):
            return False
        return self.died_before is None or message.died_ms < instant_ms(self.died_before, "died_before")


ALL = DeadFilter()


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """What a redrive did.

    Attributes:
        redriven: Messages that are in the backlog again.
        merged: Messages of which a fresh copy was in the backlog already.
        absent: Messages that were gone when their turn came.
    """

    redriven: int = 0
    merged: int = 0
    absent: int = 0


class DeadLetters:
    """The dead messages of one topic.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        actor: Who redrives and purges, for the audit; `user@host` by default.
    """

    def __init__(self, connections: Connections, topic: Topic, actor: str | None = None) -> None:
        self._connections = connections
        self._writer = SlotWriter(connections, topic)
        self._audit = Audit(connections, topic, actor)
        self.topic = topic

    def list(self, where: DeadFilter = ALL, limit: int | None = None) -> Iterator[DeadMessage]:
        """Yield dead messages, slot by slot, in each the longest dead first.

        Args:
            where: Which ones; all by default.
            limit: Most messages; no bound by default.
        """
        for slot in range(self.topic.slots):
            start = 0
            while page := self._page(slot, start):
                for message in page:
                    if limit is not None and limit <= 0:
                        return
                    if where(message):
                        yield message
                        limit = None if limit is None else limit - 1
                start += len(page)

    def count(self, where: DeadFilter = ALL) -> int:
        """Return how many dead messages are meant."""
        return sum(1 for _ in self.list(where))

    def redrive(
        self,
        where: DeadFilter = ALL,
        *,
        limit: int | None = None,
        per_second: float | None = None,
        priority: int | None = None,
        due_in: Duration | None = None,
        progress: Progress | None = None,
    ) -> RedriveResult:
        """Send dead messages again, as fresh ones with their bodies and all retries.

        Args:
            where: Which ones; all by default. Those that die while this runs are left alone.
            limit: Most messages.
            per_second: Most messages a second; no bound by default.
            priority: For PRIORITY topics; one above `max_retries`, the lowest, by default.
            due_in: For time topics: due after so long, `timedelta` or ms; at once by default.
            progress: Called with the number dealt with so far.

        Returns:
            How many went back, merged with a fresh copy, or were gone.

        Raises:
            InvalidValueError: `priority` on a time topic, `due_in` on a PRIORITY topic, or out of range.
            SendError: Redis is full; the message stays dead.

        Guarantee: atomic per call of up to 256 messages. A fresh copy in the backlog stands, unless `priority` or
        `due_in` says otherwise: then the redriven one replaces it, as the last send does.
        """
        kind, value = new_score(self.topic, priority, due_in)
        overwrite = priority is not None or due_in is not None
        if per_second is not None and not per_second > 0:
            raise InvalidValueError(f"per_second is {per_second!r}; it must be more than 0")
        counts = dict.fromkeys(Redriven, 0)
        started_s, done = time.monotonic(), 0
        size = NACK_BATCH if per_second is None else max(1, min(NACK_BATCH, int(per_second / 10)))
        with self._audit.step("redrive", meaning(where, limit)) as note:
            for slot, contents in self._chosen(where, limit, size):
                if per_second is not None:
                    self._connections.blocking.sleep(max(0.0, started_s + done / per_second - time.monotonic()))
                answers = self._writer.redrive(
                    slot, kind, value, overwrite=overwrite, limit=len(contents), contents=contents
                )
                for answer in answers:
                    counts[answer] += 1
                done += len(contents)
                note(", ".join(f"{number} {answer.value}" for answer, number in counts.items() if number))
                if progress is not None:
                    progress(done)
        return RedriveResult(counts[Redriven.DONE], counts[Redriven.MERGED], counts[Redriven.ABSENT])

    def purge(self, where: DeadFilter = ALL, *, limit: int | None = None, progress: Progress | None = None) -> int:
        """Drop dead messages for good; return how many.

        Args:
            where: Which ones; all by default.
            limit: Most messages.
            progress: Called with the number dealt with so far.
        """
        dropped = 0
        with self._audit.step("purge dead", meaning(where, limit)) as note:
            for slot, contents in self._chosen(where, limit, NACK_BATCH):
                dropped += self._writer.purge_dead(slot, contents=contents)
                note(f"dropped {dropped}")
                if progress is not None:
                    progress(dropped)
        return dropped

    def _page(self, slot: int, start: int, size: int = NACK_BATCH) -> Sequence[DeadMessage]:
        return self._connections.run(calls.list_dead(self.topic, slot, start, size))

    def _chosen(self, where: DeadFilter, limit: int | None, size: int) -> Iterator[tuple[int, Sequence[bytes]]]:
        """Yield (slot, contents to take out of the dead); the caller takes them out before the next step."""
        left = MAX_SCORE if limit is None else limit
        # by each slot's own clock: the nodes of a cluster may differ
        now_ms = [self._connections.run(calls.stats(self.topic, slot)).now_ms for slot in range(self.topic.slots)]
        for slot, until_ms in enumerate(now_ms):
            start = 0
            while left > 0 and (page := self._page(slot, start, size)):
                chosen = [message.content for message in page if message.died_ms <= until_ms and where(message)][:left]
                if chosen:
                    yield slot, chosen
                left -= len(chosen)
                start += len(page) - len(chosen)


def new_score(topic: Topic, priority: int | None, due_in: Duration | None) -> tuple[str, int]:
    """Return the kind and the value of the score that a redriven message gets.

    Raises:
        InvalidValueError: `priority` on a time topic, `due_in` on a PRIORITY topic, or out of range.
    """
    if topic.type.timed:
        if priority is not None:
            raise InvalidValueError(f"topic {topic.name} is {topic.type.name}: it has due times, no priorities")
        return "after", 0 if due_in is None else duration_ms(due_in, "due_in")
    if due_in is not None:
        raise InvalidValueError(f"topic {topic.name} is {topic.type.name}: it has priorities, no due times")
    chosen = topic.max_retries + 1 if priority is None else priority
    if type(chosen) is not int or not topic.max_retries < chosen <= MAX_SCORE:
        raise InvalidValueError(
            f"priority is {chosen!r}; on topic {topic.name} it must be a whole number above {topic.max_retries} "
            "and below 2^53"
        )
    return "priority", chosen


def meaning(where: DeadFilter, limit: int | None) -> str:
    """Return in words which dead are meant."""
    given = [
        f"{field.name}={getattr(where, field.name)!r:.200}"
        for field in fields(where)
        if getattr(where, field.name) is not None
    ]
    return " ".join([*(given or ["all the dead"]), *([] if limit is None else [f"limit={limit}"])])


def contents_filter(*contents: Payload) -> DeadFilter:
    """Return the filter for exactly these contents."""
    return DeadFilter(contents=frozenset(payload_bytes(content, "content") for content in contents))
