"""Reads, follows and manages a stream topic. Groups consume it through consumers and listeners.

A tail, which follows stream topics without a group, keeps the last id read in each slot. It reads the slots for which a
wake hint arrived, and all slots once a second, since hints may be lost. The hints of all topics come over one
connection per server, and one round trip reads up to `TRIP` slots. The entries read at once are bounded in bytes; slots
that were not reached are read first next time.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import cast

from rmq._admin import stream_view
from rmq._admin.control import set_paused
from rmq._admin.dead_letters import GroupDead
from rmq._admin.messages import AuditLine
from rmq._admin.stream_view import PAGE, StreamView
from rmq._broker import streams
from rmq._broker.claims import MAX_BATCH, NACK_BATCH
from rmq._broker.keys import group_rate_key
from rmq._claiming.wakeups import WakeupSubscriber
from rmq._model.display import brief, counted
from rmq._model.entries import (
    Position,
    StreamEntry,
    Trimmed,
    check_group,
    checked_consumer,
    checked_group,
    id_key,
    is_id,
    position,
)
from rmq._model.times import MAX_SCORE, monotonic_s, seconds
from rmq._model.topics import Retention, Topic, checked_slots
from rmq._registry.audit import Audit
from rmq._transport.call import Call
from rmq._transport.connections import Connections, call_slots
from rmq.errors import InvalidValueError, RmqError


class StreamTopic(StreamView):
    """Reads, follows and manages a stream topic.

    The argument `actor` of its methods is recorded in the audit log: 1 to 256 characters, `user@host` by default.

    Examples:
        >>> clicks = client.producer(Topic("clicks", TopicType.STREAM)).topic
        >>> _ = client.producer(clicks).send_many(StreamMessage(f"page:{number}") for number in range(3))
        >>> stream = client.stream(clicks)
        >>> stream.add_group("billing", start="all")
        >>> [entry.content for entry in stream.range(newest_first=True, limit=1)], stream.group("billing").lag
        ([b'page:2'], 3)
    """

    def dead(self, group: str, actor: str | None = None) -> GroupDead:
        """Return the dead letters of a group.

        Raises:
            InvalidValueError: `group` is not a valid name, or `actor` is empty or too long.
        """
        return GroupDead(self._connections, self.topic, group, actor)

    def pause(self, group: str, actor: str | None = None) -> int:
        """Stop all claims of a group's consumers in the whole cluster. Entries in flight are still handled.

        Returns:
            Number of slots on which the group was not paused before.

        Raises:
            InvalidValueError: The topic does not have the group, or `actor` is empty or too long.

        Guarantee: atomic per slot; safe to repeat.
        """
        return self._pause(group, True, actor)

    def resume(self, group: str, actor: str | None = None) -> int:
        """End a group's pause; return the number of slots on which it was paused.

        Raises and Guarantee: as `pause`.
        """
        return self._pause(group, False, actor)

    def audit(self, limit: int = 50) -> list[AuditLine]:
        """Return the audit log of actions on groups, consumers and entries, newest entry first.

        Raises:
            InvalidValueError: `limit`, the maximum number of entries, is not 1 to 1,000.
        """
        return self._audit_lines(limit, [0])

    def _pause(self, group: str, paused: bool, actor: str | None) -> int:
        audit = Audit(self._connections, self.topic, actor)
        if checked_group(group) not in self.stats().groups:
            raise InvalidValueError(f"topic {self.topic.name} has no group {group}", topic=self.topic.name)
        return set_paused(audit, range(self.topic.slots), paused, f"group {group}", group)

    def tail(
        self,
        start: Position | None = None,
        timeout: float | timedelta | None = None,
        slots: Iterable[int] | None = None,
    ) -> Iterator[StreamEntry]:
        """Yield entries as they arrive, in order within each slot. `tail_all` follows several topics at once.

        Args:
            start: Start after this id, or at this time; by default with entries sent from now on.
            timeout: End after this time without a new entry, in seconds or as a `timedelta`; never by default.
            slots: Only these slots; all by default.

        Raises:
            InvalidValueError: `start` is neither an id nor a time, `timeout` is negative, or the topic does not have
                one of the slots.

        Guarantee: as `tail_all`.
        """
        return tail_of([(self, slots)], start, timeout)

    def delete(self, *ids: str, slot: int | None = None, actor: str | None = None) -> int:
        """Delete entries by id, in one `slot` or in all; return how many existed.

        Raises:
            InvalidValueError: An id is invalid, or exists in several slots, since ids are unique within a slot only;
                the topic does not have the slot; or `actor` is empty or too long. Nothing was deleted.

        Guarantee: atomic per call of up to 1,000 ids on a slot; safe to repeat. A group that has a deleted entry
            pending acks it and counts it as lost.
        """
        for entry_id in ids:
            if not is_id(entry_id):
                raise InvalidValueError(f"id is {entry_id!r}; it must be an entry's id, such as '1700000000000-0'")
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
                for first in range(0, len(ids), MAX_BATCH):
                    call = stream_view.delete(self.topic, number, ids[first : first + MAX_BATCH])
                    deleted += self._connections.run(call)
                note(f"deleted {deleted}")
        return deleted

    def _refuse_ambiguous(self, ids: Iterable[str]) -> None:
        for entry_id in ids:
            whole = entry_id if "-" in entry_id else f"{entry_id}-0"
            ranges = self._per_slot(
                lambda slot, id_=whole: stream_view.read_range(self.topic, slot, id_, id_, 1, down=False)
            )
            slots = [str(entries[0].slot) for entries in ranges if entries]
            if len(slots) > 1:
                name = self.topic.name
                raise InvalidValueError(
                    f"entry {entry_id} of topic {name} exists in slots {', '.join(slots)}; select one with slot=",
                    topic=name,
                )

    def trim(self, actor: str | None = None, *, retention: Retention | None = None) -> list[Trimmed]:
        """Trim all slots now; return the result per slot.

        Args:
            actor: Name for the audit log.
            retention: Retention for this call; that of the topic by default.

        Raises:
            InvalidValueError: `retention` is not a `Retention`, or `actor` is empty or too long.

        Guarantee: atomic per call of up to 10,000 entries of a slot.
        """
        if retention is not None and not isinstance(retention, Retention):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"retention is {brief(retention, 100)}; it must be a Retention")
        done: list[Trimmed] = []
        bounds = retention or cast("Retention", self.topic.retention)
        why = "by its retention" if retention is None else f"by {retention}"
        with Audit(self._connections, self.topic, actor).step("trim", why) as note:
            for slot in range(self.topic.slots):
                trimmed, dropped = Trimmed(slot, due=False, dropped=0, more=bounds.bounded, length=0), 0
                while trimmed.more:
                    trimmed = self._connections.run(streams.trim(self.topic, slot, bounds, now=True))
                    dropped += trimmed.dropped
                done.append(replace(trimmed, dropped=dropped))
                note(f"dropped {sum(each.dropped for each in done)}")
        return done

    def add_group(self, group: str, start: str = "new") -> None:
        """Register a group before its first consumer starts. A registered group keeps its position.

        `start` is "new" (entries from now on), "all", or the id after which the group starts.

        Raises:
            InvalidValueError: `group` is not a valid name, or `start` is invalid.
            TooManyGroupsError: The topic has the maximum number of groups, 100.

        Guarantee: atomic per slot; safe to repeat.
        """
        check_group(self.topic, group, start)
        self._per_slot(lambda slot: streams.join(self.topic, slot, group, start))

    def move_group(self, group: str, start: Position, actor: str | None = None) -> None:
        """Set the position of a group, which may be paused, on all slots. With `"all"` it reads all entries again.

        Entries in flight, waiting or dead keep their state and are not delivered again: a group that moves back skips
        them. Acked entries are delivered again, with all their retries.

        Args:
            group: A registered group.
            start: `"new"` (entries from now on), `"all"`, the id after which it reads, or a time, as epoch ms or an
                aware `datetime`. A time in the future means `"new"`.
            actor: Name for the audit log.

        Raises:
            InvalidValueError: The topic does not have the group, `start` is invalid, or `actor` is empty or too long.
            RmqError: The group belongs to a Spark query, whose checkpoint has its position.

        Guarantee: atomic per slot. A repeat moves the group again: entries that it has read since are read again, and
            with `"new"` entries sent since are skipped.
        """
        if isinstance(start, str) and start not in ("new", "all") and not is_id(start):
            raise InvalidValueError(f"start is {start!r}; it must be 'new', 'all', an id, epoch ms or aware datetime")
        place = start if isinstance(start, str) else position(start, "start")
        if checked_group(group) not in self.stats().groups:
            raise InvalidValueError(f"topic {self.topic.name} has no group {group}", topic=self.topic.name)
        with Audit(self._connections, self.topic, actor).step("move group", f"group {group}: {place}") as note:
            moved, through = 0, isinstance(start, str)
            whole = f"{place}-0" if place.isdecimal() else place  # of a range, an id without its number is the last one
            for slot in range(self.topic.slots):
                moved += bool(
                    self._connections.run(stream_view.move_group(self.topic, slot, group, whole, through=through))
                )
                note(f"moved on {counted(moved, 'slot')}")

    def remove_group(self, group: str, *, force: bool = False, actor: str | None = None) -> bool:
        """Remove a group with its position, pending entries and dead entries; return whether it existed.

        Raises:
            InvalidValueError: `group` is not a valid name, or `actor` is empty or too long.
            RmqError: A consumer of the group holds pending entries, and was active within the last two leases. With
                `force` the group is removed anyway, and such a consumer creates it again, from the first entry.

        Guarantee: atomic per slot; safe to repeat.
        """
        checked_group(group)
        busy = [consumer.name for consumer in self.consumers(group) if not consumer.gone and consumer.pending]
        if busy and not force:
            raise RmqError(
                f"active consumers of group {group} of topic {self.topic.name} have pending entries: "
                f"{', '.join(busy[:3])}; stop them, or remove the group with force (--force)",
                topic=self.topic.name,
            )
        with Audit(self._connections, self.topic, actor).step("remove group", f"group {group}") as note:
            removed = any(self._per_slot(lambda slot: stream_view.drop_group(self.topic, slot, group)))
            self._connections.command("UNLINK", group_rate_key(self.topic.name, group))
            note("removed" if removed else "not found")
        return removed

    def remove_consumer(self, group: str, name: str, actor: str | None = None) -> int:
        """Remove a consumer and return the number of its pending entries, which go to other consumers at once.

        Use it only for a consumer that no longer runs: a running one would go on handling entries that are delivered to
        others.

        Raises:
            InvalidValueError: `group` or `name` is not a valid name, or `actor` is empty or too long.

        Guarantee: atomic per call of up to 100 entries of a slot; safe to repeat.
        """
        checked_group(group)
        checked_consumer(name)
        with Audit(self._connections, self.topic, actor).step("remove consumer", f"group {group}: {name}") as note:
            returned = self._forget(group, name, 0)
            note(f"gave back {returned}")
        return returned

    def remove_gone_consumers(self, group: str, idle_s: float | None = None, actor: str | None = None) -> list[str]:
        """Remove consumers that no longer run, and return their names. Their pending entries go to others at once.

        A consumer counts as gone after `idle_s` seconds without activity, two leases by default; see `consumers`.

        Raises:
            InvalidValueError: `group` is not a valid name, `idle_s` is negative, or `actor` is empty or too long.

        Guarantee: as `remove_consumer`. A consumer that has become active in the meantime stays.
        """
        gone = [consumer.name for consumer in self.consumers(group, idle_s) if consumer.gone]
        if not gone:
            return []
        longest_s = 2 * self.topic.lease_s if idle_s is None else seconds(idle_s, "idle_s")
        detail = f"group {group}: {counted(len(gone), 'idle consumer')}"
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
                call = streams.forget(self.topic, slot, group, name, idle_ms, NACK_BATCH)
                removed, number = self._connections.run(call)
                returned += number
        return returned


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
    return stream_view.read_range(cursor.topic, cursor.slot, cursor.after, "+", PAGE, down=False)
