"""Deletes a topic, or refuses to: the steps that `rmq/_registry/deletion.py` explains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rmq._admin import stream_view
from rmq._admin.inspection import Inspection, read_workers
from rmq._admin.stream_view import StreamView
from rmq._admin.view import SparkQueries
from rmq._broker.keys import RECURRING_TOPIC, TOPICS_KEY, group_rate_key, history_key, rate_key, slot_keys
from rmq._model.display import counted
from rmq._model.topics import Topic, TopicType
from rmq._registry.audit import Audit
from rmq._registry.deletion import DELETED, TOMBSTONES, Deletion, SlotDeletion, delete_slot
from rmq._registry.known_topics import KnownTopics
from rmq._registry.registry import MOST_TRIES, Stored
from rmq._transport.connections import Connections
from rmq.errors import InvalidValueError, RmqError, TopicDeletedError, TopicInUseError, UnknownTopicError

QUERY_MS = 60_000
"""Time since its last report up to which a Spark query counts as running, ms."""

MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """The result of deleting a topic.

    Attributes:
        topic: Name of the topic.
        slots: Number of its slots.
        messages: Number of messages that were dropped, including dead ones; on a stream topic, number of entries,
            including acked ones, plus the dead entries of its groups.
        schedules: Names of the schedules that send to the topic; these sends now fail.

    Examples:
        >>> DeletedTopic("jobs", slots=8, messages=0).messages
        0
    """

    topic: str
    slots: int
    messages: int
    schedules: tuple[str, ...] = ()


class TopicDeletion:
    """Deletes one topic; see `RmqClient.delete_topic`.

    Args:
        connections: Connections to Redis.
        known: The registered definitions.
        name: Name of the topic.
        actor: Name for the audit log.
    """

    def __init__(self, connections: Connections, known: KnownTopics, name: str, actor: str | None) -> None:
        if name == RECURRING_TOPIC:
            raise InvalidValueError(f"topic {name} cannot be deleted: it has all schedules; see `rmq schedules remove`")
        self._connections, self._known, self._name, self._actor = connections, known, name, actor

    def run(self, schedules: tuple[str, ...], *, force: bool, forget: bool) -> DeletedTopic:
        """Delete the topic, or end a deletion that was interrupted. `schedules` are those that send to it."""
        stored = self._known.stored(self._name)
        topic = stored.topic
        force = force or (stored.deletion is not None and stored.deletion.force)
        audit = Audit(self._connections, topic, self._actor)
        if stored.deletion is None and not force:
            self._refuse_if_used(topic, schedules)
        with audit.step("delete topic", "with all that it holds" if force else "if it is empty") as note:
            deletion = self._begun(audit.actor, force)
            messages = self._drop_slots(topic, deletion, note)
            self._change(deletion, deletion.completed().to_fields())
            self._connections.command("UNLINK", rate_key(self._name))
            self._connections.command("UNLINK", history_key(self._name))
        if forget:
            self._known.clear(topic, deletion.id)
            with suppress(UnknownTopicError):  # another client was faster
                self._change(deletion, None)
        self._known.forget(self._name)
        return DeletedTopic(self._name, topic.slots, messages, schedules)

    def _begun(self, actor: str, force: bool) -> Deletion:
        """Note in the definition that the topic is being deleted, or go on with what it says."""
        for _ in range(MOST_TRIES):
            stored = self._known.stored(self._name)
            s, us = map(int, self._connections.command("TIME", key=TOPICS_KEY))
            cleared = self._connections.command("HGET", slot_keys(self._name, 0).meta, "cleared") or b""
            deletion = stored.deletion or Deletion.begun(actor, s * 1000 + us // 1000, cleared.decode(), force=force)
            deletion = replace(deletion, force=deletion.force or force)
            if deletion == stored.deletion or self._known.replace_fields(stored, deletion.to_fields()):
                return deletion
        raise self._contended()

    def _change(self, deletion: Deletion, added: Mapping[str, Any] | None, removed: str = "") -> None:
        """Replace fields of the definition, or remove it, as long as it has this deletion."""
        for _ in range(MOST_TRIES):
            if self._known.replace_fields(self._deleted(deletion)[0], added, removed):
                return
        raise self._contended()

    def _deleted(self, deletion: Deletion) -> tuple[Stored, Deletion]:
        """Read the definition and its deletion; raise if it is another one by now, or none."""
        stored = self._known.stored(self._name)
        if (now := stored.deletion) is None or now.id != deletion.id:
            raise RmqError(f"another client undid or replaced the deletion of topic {self._name}; try again if needed")
        return stored, now

    def _drop_slots(self, topic: Topic, deletion: Deletion, note: Callable[[str], None]) -> int:
        """Drop all slots; return the number of messages. Without force, a slot that holds some undoes the deletion."""
        messages = 0
        for slot in range(topic.slots):
            outcome, number = self._drop_slot(topic, slot, deletion)
            # a slot is cleared before all are dropped only if a server has lost the definition's last change
            if outcome == "kept" or (outcome == "cleared" and not self._deleted(deletion)[1].done):
                self._change(deletion, {TOMBSTONES: deletion.id}, DELETED)
                self._known.get(self._name)  # removes the tombstones
                raise self._in_use([f"slot {slot} has received {counted(number, 'message')} since the deletion began"])
            messages += number
            note(f"dropped {counted(messages, 'message')}")
        return messages

    def _drop_slot(self, topic: Topic, slot: int, deletion: Deletion) -> SlotDeletion:
        groups: tuple[str, ...] = ()
        while True:
            done = self._connections.run(delete_slot(topic, slot, deletion.id, groups, force=deletion.force))
            if done.outcome != "groups":
                break
            groups = self._connections.run(stream_view.stats(topic, slot)).groups
        for group in groups:
            self._connections.command("UNLINK", group_rate_key(topic.name, group))
        return done

    def _refuse_if_used(self, topic: Topic, schedules: tuple[str, ...]) -> None:
        """Raise `TopicInUseError` if the topic holds messages, or a process uses it that can be seen in Redis."""
        used: list[str] = []
        with suppress(TopicDeletedError):  # a tombstone from before the registry was lost: each slot is asked anyway
            if messages := self._stored(topic):
                used.append(f"it holds {counted(messages, 'message')}")
        workers = [
            each.name
            for each in read_workers(self._connections)
            if not each.stale and any(listener.topic == topic.name for listener in each.listeners)
        ]
        queries = SparkQueries(self._connections, topic.name).read()
        running = [each.name for each in queries if each.role != "write" and each.silent_ms < QUERY_MS]
        for what, names in (("worker", workers), ("Spark query", running), ("schedule", schedules)):
            if names:
                more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
                used.append(f"used by {what} {', '.join(names[:MOST_NAMED])}{more}")
        if used:
            raise self._in_use(used)

    def _stored(self, topic: Topic) -> int:
        """Return the number of messages of a topic, and on a stream topic of its entries and dead ones of groups."""
        if topic.type is not TopicType.STREAM:
            stats = Inspection(self._connections, topic).stats()
            return stats.backlog + stats.in_flight + stats.waiting + stats.dead
        entries, groups = StreamView(self._connections, topic).with_groups()
        return entries.length + sum(group.dead for group in groups)

    def _contended(self) -> RmqError:
        return RmqError(f"deleting topic {self._name} failed: other clients changed it during each attempt; try again")

    def _in_use(self, used: list[str]) -> TopicInUseError:
        return TopicInUseError(
            f"topic {self._name} was not deleted: {'; '.join(used)}; use force (--force) to delete it anyway",
            topic=self._name,
        )
