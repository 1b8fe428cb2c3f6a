"""The dead of one group of a stream topic: what failed for good, why, and how to deliver it to this group again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmq import stream_calls
from rmq.audit import Audit
from rmq.connections import Connections
from rmq.dead import ALL, DeadFilter, Progress, RedriveResult, meaning
from rmq.results import Redriven
from rmq.slot import NACK_BATCH
from rmq.stream_slot import StreamWriter
from rmq.stream_values import DeadEntry, checked_group
from rmq.topics import Topic


class GroupDead:
    """The dead of one group.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        group: Its name.
        actor: Who redrives and purges, for the audit; `user@host` by default.
    """

    def __init__(self, connections: Connections, topic: Topic, group: str, actor: str | None = None) -> None:
        self._connections = connections
        self._audit = Audit(connections, topic, actor)
        self._writer = StreamWriter(connections, topic)
        self.topic = topic
        self.group = checked_group(group)

    def list(self, where: DeadFilter = ALL, limit: int | None = None) -> Iterator[DeadEntry]:
        """Yield dead entries, slot by slot, in each the longest dead first.

        Args:
            where: Which ones; all by default. Its contents and pattern look at `DeadEntry.content`.
            limit: Most entries; no bound by default.
        """
        for slot in range(self.topic.slots):
            start = 0
            while page := self._page(slot, start):
                for entry in page:
                    if limit is not None and limit <= 0:
                        return
                    if where(entry):
                        yield entry
                        limit = None if limit is None else limit - 1
                start += len(page)

    def count(self, where: DeadFilter = ALL) -> int:
        """Return how many dead entries are meant."""
        return sum(1 for _ in self.list(where))

    def redrive(
        self, where: DeadFilter = ALL, *, limit: int | None = None, progress: Progress | None = None
    ) -> RedriveResult:
        """Deliver dead entries again, to this group and to no other, with all retries.

        Args:
            where: Which ones; all by default. Those that die while this runs are left alone.
            limit: Most entries.
            progress: Called with the number dealt with so far.

        Returns:
            How many are on their way again, or were gone; a stream merges nothing.

        Raises:
            SendError: Redis is full; the entry stays dead.

        Guarantee: atomic per call of up to 256 entries; safe to repeat. An entry that was trimmed from the stream in
            the meantime comes back as a copy at its end, which the other groups pass over.
        """
        counts, done = dict.fromkeys(Redriven, 0), 0
        with self._audit.step("redrive", self._meaning(where, limit)) as note:
            for slot, ids in self._chosen(where, limit):
                for answer in self._writer.redrive(slot, self.group, ids):
                    counts[answer] += 1
                done += len(ids)
                note(f"{counts[Redriven.DONE]} done, {counts[Redriven.ABSENT]} absent")
                if progress is not None:
                    progress(done)
        return RedriveResult(counts[Redriven.DONE], 0, counts[Redriven.ABSENT])

    def purge(self, where: DeadFilter = ALL, *, limit: int | None = None, progress: Progress | None = None) -> int:
        """Drop dead entries for good; return how many. The stream keeps what it has of them."""
        dropped = 0
        with self._audit.step("purge dead", self._meaning(where, limit)) as note:
            for slot, ids in self._chosen(where, limit):
                dropped += self._writer.purge_dead(slot, self.group, ids)
                note(f"dropped {dropped}")
                if progress is not None:
                    progress(dropped)
        return dropped

    def _meaning(self, where: DeadFilter, limit: int | None) -> str:
        return f"group {self.group}: {meaning(where, limit)}"

    def _page(self, slot: int, start: int) -> Sequence[DeadEntry]:
        return self._connections.run(stream_calls.list_dead(self.topic, slot, self.group, start, NACK_BATCH))

    def _chosen(self, where: DeadFilter, limit: int | None) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield (slot, ids to take out of the dead); the caller takes them out before the next step."""
        left = float("inf") if limit is None else limit
        for slot in range(self.topic.slots):
            until_ms = self._connections.run(stream_calls.stats(self.topic, slot)).now_ms
            start = 0
            while left > 0 and (page := self._page(slot, start)):
                chosen = [entry.id for entry in page if entry.died_ms <= until_ms and where(entry)]
                chosen = chosen if left == float("inf") else chosen[: int(left)]
                if chosen:
                    yield slot, chosen
                left -= len(chosen)
                start += len(page) - len(chosen)
