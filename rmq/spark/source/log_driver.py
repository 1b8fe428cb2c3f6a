"""The driver of a query on a STREAM topic: plans ranges of ids, and moves its consumer group when Spark commits."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from math import inf

from rmq import Topic
from rmq.errors import BatchAckedError, BatchError
from rmq.spark import calls
from rmq.spark.calls import Reach, Standing, Walked
from rmq.spark.figures import LogFigures
from rmq.spark.options import Options
from rmq.spark.slots import PIECE
from rmq.spark.source.batches import LogBatch, Span, shares
from rmq.spark.source.driver import StreamDriver, data_lost
from rmq.spark.source.waiting import IDLE_S, Waiting
from rmq.spi import id_key
from rmq.spi.scripts import CLAIM_BYTES, MAX_BATCH, Call, call_slots, join_stream, look_at_stream


class LogDriver(StreamDriver[LogBatch, LogFigures]):
    """Plans and commits the batches of one query on a STREAM topic.

    Args:
        options: The options of the query, with a group.
        topic: The registered definition.
    """

    def __init__(self, options: Options, topic: Topic) -> None:
        self.group = options.needed_group(topic)
        connections = options.connections()
        waiting = Waiting(connections, topic, lambda slots: look_at_stream(topic, slots, self.group))
        super().__init__(options, topic, connections, waiting, LogFigures(topic.name, self.group))
        self._token = uuid.uuid4().hex
        self._standing: dict[int, Standing] = {}
        self._target: dict[int, Standing] | None = None

    def begin(self, batch: LogBatch) -> None:
        """Take over or create the group in all slots; earlier drivers can then no longer commit.

        Raises:
            InvalidValueError: The group has consumers.
            BatchAckedError: The group's position is after the batch: the checkpoint is an old copy.
            BatchError: The group is gone, or the checkpoint belongs to another topic or group.
        """
        if self._standing:
            return
        self._check_checkpoint(batch)
        standing = self._enter(range(self.topic.slots))
        gone = [slot for slot, each in standing.items() if not each.position]
        if gone and batch.seq > 0:
            self._lost(f"group {self.group}, whose checkpoint is at batch {batch.seq}, is missing in {len(gone)} slots")
        if gone:
            starts = {slot: batch.ends.get(slot, self._options.start) for slot in gone}
            starts |= {slot: span.after for slot, span in batch.spans.items()}  # this batch may not be committed yet
            call_slots(self._connections, gone, lambda slot: join_stream(self.topic, slot, self.group, starts[slot]))
            standing |= self._enter(gone)
        for slot, end in batch.ends.items():
            if id_key(standing[slot].position) > id_key(end):
                raise self._ahead(slot, standing[slot].position, end)
        self._standing, self._acked = standing, 0
        self._publish(self.figures.report)

    def _check_checkpoint(self, batch: LogBatch) -> None:
        if (batch.topic, batch.group) != (self.topic.name, self.group):
            raise BatchError(
                f"this checkpoint belongs to topic {batch.topic} and group {batch.group}, but the options name "
                f"topic {self.topic.name} and group {self.group}: use a separate checkpoint for each query",
                topic=self.topic.name,
            )
        if batch.ends and len(batch.ends) != self.topic.slots:
            raise BatchError(
                f"topic {self.topic.name} has {self.topic.slots} slots, but had {len(batch.ends)} when this "
                "checkpoint was written: start with a new checkpoint and a new group",
                topic=self.topic.name,
            )

    def _ahead(self, slot: int, position: str, end: str) -> BatchAckedError:
        return BatchAckedError(
            f"the position of group {self.group} of topic {self.topic.name} in slot {slot} is {position}, "
            f"after {end}, the last commit of this query. Its checkpoint is an old copy, or another "
            "consumer uses this group",
            topic=self.topic.name,
            slot=slot,
        )

    def _ack(self, batch: LogBatch) -> None:
        """Move the group to the end of the batch."""
        self.begin(batch)
        if batch.seq <= self._acked:
            return

        def build(slot: int) -> Call[bool]:
            missing = batch.spans[slot].missing if slot in batch.spans else 0
            end, read = batch.ends[slot], batch.reads[slot]
            return calls.advance(self.topic, slot, self.group, self._token, end, read, missing)

        # the first time, all slots: a failover may have moved some back
        call_slots(self._connections, list(batch.ends if self._acked == 0 else batch.spans), build)
        self._acked = batch.seq
        self.figures.committed(batch)
        with self._lock:
            if self._open is not None and self._open.seq <= batch.seq:
                self._open = None

    def plan(self, last: LogBatch, limit: int | None) -> LogBatch | None:
        """Return the batch after `last`, of up to `limit` entries; `None` if there are none.

        If there were none the last time, it first waits a short time for an entry.

        Raises:
            BatchError: Entries were trimmed or deleted before the query read them.
        """
        if self._target is None and not self._waiting.is_over(IDLE_S):
            return None
        before = {
            slot: (last.ends.get(slot, each.position), last.reads.get(slot, each.read))
            for slot, each in self._standing.items()
        }
        with self.figures.time.counted():
            ends, spans = self._walk(before, limit, last.seq)
        if not ends:
            if self._target is None:
                self._waiting.rest()
            return None
        self.figures.planned()
        return last.next(before, ends, spans)

    def freeze(self) -> None:
        """Limit the query to the entries that exist now, as Trigger.AvailableNow requires."""
        self._target = self._enter(range(self.topic.slots))

    def open(self, batch: LogBatch) -> None:
        """Record the running batch, to which a commit notification refers."""
        with self._acking:
            self.begin(batch)
        with self._lock:
            self.figures.opened(batch.seq)
            self._open = batch
            self._hear_commits(batch.query)

    def trim(self, ends: Mapping[int, str], say: Callable[[str], None]) -> tuple[int, int]:
        """Drop the committed entries of each slot up to an id that no other group needs.

        Args:
            ends: Slot -> id of the last entry that may be dropped.
            say: Called with a line of text after each piece.

        Returns:
            The number of dropped entries, and of slots with entries that a group still needs.

        Raises:
            DriverReplacedError: Another driver reads the topic with this group.
        """
        dropped, held, slots = 0, set[int](), sorted(ends)
        while slots:
            piece, slots = slots[:PIECE], slots[PIECE:]
            answers = call_slots(
                self._connections,
                piece,
                lambda slot: calls.trim(self.topic, slot, self.group, self._token, ends[slot]),
            )
            for slot, done in zip(piece, answers, strict=True):
                dropped += done.number
                (held.add if done.held else held.discard)(slot)
                if done.more:
                    slots.append(slot)
            say(f"trimmed {dropped:,} entries")
        return dropped, len(held)

    def _enter(self, slots: Iterable[int]) -> dict[int, Standing]:
        named = list(slots)
        answers = call_slots(
            self._connections, named, lambda slot: calls.position(self.topic, slot, self.group, self._token)
        )
        return dict(zip(named, answers, strict=True))

    def _walk(
        self, before: Mapping[int, tuple[str, int]], limit: int | None, seq: int
    ) -> tuple[dict[int, str], dict[int, Span]]:
        """Return by slot the id of the last entry of the next batch, and the batch's entries of the slot."""
        after = {slot: end for slot, (end, _) in before.items()}
        ends, numbers, missing = dict[int, str](), dict.fromkeys(after, 0), dict[int, int]()
        left, bytes_left = inf if limit is None else limit, self._options.max_bytes or inf
        # each batch starts with another slot, if not all slots fit
        active = sorted(after, key=lambda slot: (slot - seq) % self.topic.slots)
        if self._target is not None:
            active = [slot for slot in active if id_key(self._target[slot].newest or "0") > id_key(after[slot])]
        while active and left > 0 and bytes_left > 0:
            share = shares(active, int(min(left, MAX_BATCH * len(active))))
            most_bytes = int(max(1, min(CLAIM_BYTES, bytes_left // len(share))))
            more: list[int] = []
            # the first entry may have any size: otherwise a large one would never be read
            for slot, found in self._count(after | ends, share, most_bytes, any_size=not ends):
                left, bytes_left = left - found.number, bytes_left - found.size_bytes
                numbers[slot] += found.number
                if found.last:
                    ends[slot] = found.last
                if found.more and found.number:
                    more.append(slot)
                gone = self._note(slot, found, before[slot], numbers[slot])
                if gone:
                    missing[slot] = gone
            active = [slot for slot in active if slot in more or slot not in share]
        for slot in missing:
            ends.setdefault(slot, after[slot])
        return ends, {slot: Span(after[slot], numbers[slot], missing.get(slot, 0)) for slot in ends}

    def _count(
        self, after: dict[int, str], share: dict[int, int], most_bytes: int, *, any_size: bool
    ) -> Iterable[tuple[int, Walked]]:
        slots = list(share)
        for first in range(0, len(slots), PIECE):
            piece = slots[first : first + PIECE]

            def build(slot: int) -> Call[Walked]:
                reach = Reach(after[slot], self._upto(slot), min(MAX_BATCH, share[slot]), most_bytes, any_size)
                return calls.walk(self.topic, slot, self.group, reach)

            yield from zip(piece, call_slots(self._connections, piece, build), strict=True)

    def _upto(self, slot: int) -> str:
        """Return the id up to which a slot is read, or `+`."""
        newest, last = "+" if self._target is None else self._target[slot].newest, self._options.last
        return last if last is not None and (newest == "+" or id_key(last) < id_key(newest)) else newest

    def _note(self, slot: int, found: Walked, before: tuple[str, int], number: int) -> int:
        """Record the entries after a batch in a slot; return the number of entries that vanished before its end."""
        after, read = before
        if not found.position:
            self._standing = {}  # the next trigger creates it again
            self._lost(f"group {self.group} no longer exists in slot {slot}")
            return 0
        if id_key(found.position) > id_key(after):
            raise self._ahead(slot, found.position, after)
        if id_key(found.position) < id_key(after):
            self._acked = 0  # a failover has moved the group back: the next trigger corrects all slots
        sent = found.sent if self._target is None else self._target[slot].sent
        if self._options.last is not None:
            sent = None  # the number of entries up to there is unknown
        behind = None if sent is None else max(0, sent - read - number)
        self.figures.lag[slot] = behind
        if found.more or not behind:
            return 0
        self._lost(f"{behind} entries of slot {slot} were trimmed or deleted before group {self.group} read them")
        self.figures.lag[slot] = 0
        return behind

    def _lost(self, what: str) -> None:
        data_lost(self._options, f"topic {self.topic.name}: {what}", self.topic.name)
