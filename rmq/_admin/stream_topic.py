"""A stream topic to read, to follow and to look after; what groups consume goes through consumers and listeners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta

from rmq._admin.dead_letters import GroupDead
from rmq._admin.stream_view import StreamView
from rmq._admin.tailing import tail_of
from rmq._broker import streams
from rmq._broker.claims import NACK_BATCH
from rmq._broker.control import Audit
from rmq._broker.slot_calls import checked_slots
from rmq._broker.stream_broker import StreamWriter
from rmq._model.display import brief, counted
from rmq._model.entries import (
    Position,
    StreamEntry,
    Trimmed,
    check_group,
    checked_consumer,
    checked_group,
    is_id,
    position,
)
from rmq._model.retention import Retention
from rmq._model.times import seconds
from rmq._model.topics import Topic
from rmq._model.whereabouts import AuditLine
from rmq._transport.connections import Connections
from rmq.errors import InvalidValueError, RmqError


class StreamTopic(StreamView):
    """A stream topic. `actor`, wherever it is asked for: who does it, for the audit; `user@host` by default.

    Examples:
        >>> clicks = client.producer(Topic("clicks", TopicType.STREAM)).topic
        >>> _ = client.producer(clicks).send_many(StreamMessage(f"page:{number}") for number in range(3))
        >>> stream = client.stream(clicks)
        >>> stream.add_group("billing", start="all")
        >>> [entry.content for entry in stream.range(newest_first=True, limit=1)], stream.group("billing").lag
        ([b'page:2'], 3)
    """

    def __init__(self, connections: Connections, topic: Topic) -> None:
        super().__init__(connections, topic)
        self._writer = StreamWriter(connections, topic)

    def dead(self, group: str, actor: str | None = None) -> GroupDead:
        """Return the dead of a group."""
        return GroupDead(self._connections, self.topic, group, actor)

    def pause(self, group: str, actor: str | None = None) -> int:
        """Let no consumer of a group claim, in the whole cluster; what is in flight goes on.

        Returns:
            On how many slots it was not paused before.

        Raises:
            InvalidValueError: The topic has no such group, or `actor` is empty or too long.

        Guarantee: atomic per slot; safe to repeat.
        """
        return self._pause(group, True, actor)

    def resume(self, group: str, actor: str | None = None) -> int:
        """End a group's pause; return on how many slots it was paused. Otherwise as `pause`."""
        return self._pause(group, False, actor)

    def audit(self, limit: int = 50) -> list[AuditLine]:
        """Return who steered groups and their dead, removed consumers, deleted or trimmed by hand; newest first."""
        return self._audit_lines(limit, [0])

    def _pause(self, group: str, paused: bool, actor: str | None) -> int:
        audit = Audit(self._connections, self.topic, actor)
        if checked_group(group) not in self.stats().groups:
            raise InvalidValueError(f"topic {self.topic.name} has no group {group}", topic=self.topic.name)
        changed = self._writer.pause(group, paused, audit.actor, f"group {group}")
        audit.report("pause" if paused else "resume", f"{counted(changed, 'slot')} changed", detail=f"group {group}")
        return changed

    def tail(
        self,
        start: Position | None = None,
        timeout: float | timedelta | None = None,
        slots: Iterable[int] | None = None,
    ) -> Iterator[StreamEntry]:
        """Yield entries as they arrive, in order within each slot; `tail_all` does so for several topics at once.

        Args:
            start: Begin after this id, or at this time; with what is sent from now on by default.
            timeout: End when nothing has arrived for so long, in seconds or as a `timedelta`; never by default.
            slots: Only these slots; all by default.
        """
        return tail_of([(self, slots)], start, timeout)

    def delete(self, *ids: str, slot: int | None = None, actor: str | None = None) -> int:
        """Delete entries by id, in their `slot` or where they are; return how many were there.

        Raises:
            InvalidValueError: Not an id, or one that several slots have: ids are unique within a slot only. Nothing was
                deleted.

        Guarantee: safe to repeat. A group that has one of them pending finds out, acks it and counts it as lost.
        """
        for entry_id in ids:
            if not is_id(entry_id):
                raise InvalidValueError(f"id is {entry_id!r}; it must be an entry's id")
        if not ids:
            return 0
        deleted, chosen = 0, checked_slots(self.topic, None if slot is None else [slot])
        if len(chosen) > 1:
            self._refuse_ambiguous(ids)
        detail = (
            f"{ids[0] if len(ids) == 1 else f'{len(ids)} ids'} on {'all slots' if slot is None else f'slot {slot}'}"
        )
        with Audit(self._connections, self.topic, actor).step("delete", detail) as note:
            for number in chosen:
                deleted += self._writer.delete(number, ids)
                note(f"deleted {deleted}")
        return deleted

    def _refuse_ambiguous(self, ids: Iterable[str]) -> None:
        for entry_id in ids:
            whole = entry_id if "-" in entry_id else f"{entry_id}-0"
            ranges = self._per_slot(
                lambda slot, id_=whole: streams.read_range(self.topic, slot, id_, id_, 1, down=False)
            )
            slots = [str(entries[0].slot) for entries in ranges if entries]
            if len(slots) > 1:
                name = self.topic.name
                raise InvalidValueError(
                    f"slots {', '.join(slots)} of topic {name} have an entry {entry_id} each; say which", topic=name
                )

    def trim(self, actor: str | None = None, *, retention: Retention | None = None) -> list[Trimmed]:
        """Clean up all slots now; return what was done per slot.

        Args:
            actor: Who does it, for the audit.
            retention: What to keep this once; by default what the topic's retention says.

        Raises:
            InvalidValueError: `retention` is none.
        """
        if retention is not None and not isinstance(retention, Retention):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"retention is {brief(retention, 100)}; it must be a Retention")
        done: list[Trimmed] = []
        why = "by its retention" if retention is None else f"by {retention}"
        with Audit(self._connections, self.topic, actor).step("trim", why) as note:
            for slot in range(self.topic.slots):
                trimmed = self._writer.trim(slot, now=True, retention=retention)
                dropped = trimmed.dropped
                while trimmed.more:
                    trimmed = self._writer.trim(slot, now=True, retention=retention)
                    dropped += trimmed.dropped
                done.append(replace(trimmed, dropped=dropped))
                note(f"dropped {sum(each.dropped for each in done)}")
        return done

    def add_group(self, group: str, start: str = "new") -> None:
        """Register a group before its first consumer comes; where it is registered, it stays where it is.

        It begins with `new` entries, with `all`, or after the id that `start` is.

        Raises:
            TooManyGroupsError: The topic has its most groups.
        """
        check_group(self.topic, group, start)
        self._writer.join(group, start)

    def move_group(self, group: str, start: Position, actor: str | None = None) -> None:
        """Set what a group reads next, on all slots; a paused group, too. With `"all"` it reads everything again.

        What is in flight, waiting or dead stays so, and is not delivered a second time: a group that moves back passes
        over it. Entries that were acked are delivered again, with all their retries.

        Args:
            group: A registered group.
            start: `"new"` entries, `"all"`, those after an id, or those from a time on: epoch ms, or an aware
                `datetime`. What lies ahead means `"new"`.
            actor: Who does it, for the audit.

        Raises:
            InvalidValueError: The topic has no such group, or `start` is none of these.
            RmqError: A Spark query reads with this group: its checkpoint says where it is.

        Guarantee: atomic per slot; safe to repeat, though what was read since the first time is then read once more.
        """
        if isinstance(start, str) and start not in ("new", "all") and not is_id(start):
            raise InvalidValueError(f"start is {start!r}; it must be 'new', 'all', an entry's id or a time")
        place = start if isinstance(start, str) else position(start, "start")
        if checked_group(group) not in self.stats().groups:
            raise InvalidValueError(f"topic {self.topic.name} has no group {group}", topic=self.topic.name)
        with Audit(self._connections, self.topic, actor).step("move group", f"group {group}: {place}") as note:
            moved = 0
            for slot in range(self.topic.slots):
                moved += self._writer.move_group(slot, group, place, through=isinstance(start, str))
                note(f"moved on {counted(moved, 'slot')}")

    def remove_group(self, group: str, *, force: bool = False, actor: str | None = None) -> bool:
        """Remove a group with its position, its pending entries and its dead; return whether it was there.

        Raises:
            RmqError: A consumer of the group was at work within the last two leases. With `force`, such a consumer
                makes the group anew, from the first entry.
        """
        checked_group(group)
        busy = [consumer.name for consumer in self.consumers(group) if not consumer.gone and consumer.pending]
        if busy and not force:
            raise RmqError(
                f"group {group} of topic {self.topic.name} is at work: {', '.join(busy[:3])}", topic=self.topic.name
            )
        with Audit(self._connections, self.topic, actor).step("remove group", f"group {group}") as note:
            removed = self._writer.drop_group(group)
            note("removed" if removed else "not there")
        return removed

    def remove_consumer(self, group: str, name: str, actor: str | None = None) -> int:
        """Remove a consumer; what it holds goes to the others at once. Returns how many entries that were.

        For one that is known to be dead: a live one would go on with entries that another consumer gets, too.
        """
        checked_group(group)
        checked_consumer(name)
        with Audit(self._connections, self.topic, actor).step("remove consumer", f"group {group}: {name}") as note:
            returned = self._forget(group, name, 0)
            note(f"gave back {returned}")
        return returned

    def remove_gone_consumers(self, group: str, idle_s: float | None = None, actor: str | None = None) -> list[str]:
        """Remove the consumers that are gone; what they hold goes to the others at once. Returns their names.

        A consumer is gone once it has been idle for `idle_s` seconds, two leases by default: see `consumers`.
        """
        gone = [consumer.name for consumer in self.consumers(group, idle_s) if consumer.gone]
        if not gone:
            return []
        longest_s = 2 * self.topic.lease_s if idle_s is None else seconds(idle_s, "idle_s")
        detail = f"group {group}: those gone, {len(gone)}"
        with Audit(self._connections, self.topic, actor).step("remove consumer", detail) as note:
            for number, name in enumerate(gone, 1):
                self._forget(group, name, int(longest_s * 1000))
                note(f"removed {number}")
        return gone

    def _forget(self, group: str, name: str, idle_ms: int) -> int:
        returned = 0
        for slot in range(self.topic.slots):
            removed, number = 0, NACK_BATCH
            while not removed and number == NACK_BATCH:
                removed, number = self._writer.forget(slot, group, name, idle_ms, NACK_BATCH)
                returned += number
        return returned
