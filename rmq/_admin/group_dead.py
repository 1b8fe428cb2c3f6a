"""The dead of one group of a stream topic: what failed for good, why, and how to deliver it to this group again."""

from __future__ import annotations

from collections.abc import Sequence

from rmq._admin.dead_letters import ALL, Dead, DeadFilter, Progress, RedriveResult
from rmq._model.entries import DeadEntry, checked_group
from rmq._model.replies import Redriven
from rmq._model.topics import Topic
from rmq._scripts import streams
from rmq._slots.audit import Audit
from rmq._slots.stream_slots import StreamWriter
from rmq._transport.call import Call
from rmq._transport.connections import Connections


class _GroupStore:
    """The dead of a group."""

    def __init__(self, connections: Connections, topic: Topic, group: str) -> None:
        self.writer = StreamWriter(connections, topic)
        self.topic = topic
        self._group = group

    def page_call(self, slot: int, start: int, limit: int) -> Call[list[DeadEntry]]:
        return streams.list_dead(self.topic, slot, self._group, start, limit)

    def clock_call(self, slot: int) -> Call[int]:
        return streams.stats(self.topic, slot).then(lambda stats: stats.now_ms)

    def purge(self, slot: int, dead: Sequence[DeadEntry]) -> int:
        return self.writer.purge_dead(slot, self._group, [entry.id for entry in dead])


class GroupDead(Dead[DeadEntry]):
    """The dead of one group.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        group: Its name.
        actor: Who redrives and purges, for the audit; `user@host` by default.
    """

    def __init__(self, connections: Connections, topic: Topic, group: str, actor: str | None = None) -> None:
        self.group = checked_group(group)
        store = _GroupStore(connections, topic, group)
        super().__init__(connections, store, Audit(connections, topic, actor), f"group {group}: ")
        self._writer = store.writer

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

        Guarantee: atomic per call of up to 100 entries; safe to repeat. An entry that was trimmed from the stream in
            the meantime comes back as a copy at its end, which the other groups pass over.
        """

        def send(slot: int, dead: Sequence[DeadEntry]) -> Sequence[Redriven]:
            return self._writer.redrive(slot, self.group, [entry.id for entry in dead])

        return self._redrive(where, limit, send, progress)
