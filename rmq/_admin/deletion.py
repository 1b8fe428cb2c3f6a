"""Deletes a topic, or refuses to: the steps that `rmq/_broker/deletion.py` explains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex

from rmq._admin.inspection import Inspection, read_workers
from rmq._admin.schedules import Schedules
from rmq._admin.spark_queries import SparkQueries
from rmq._admin.stream_view import StreamView
from rmq._broker import streams
from rmq._broker.control import Audit
from rmq._broker.deletion import DELETED, Deletion, SlotDeletion, clear_slot, delete_slot
from rmq._broker.keys import TOPICS_KEY, group_rate_key, history_key, rate_key
from rmq._broker.known_topics import KnownTopics
from rmq._broker.registry import MOST_TRIES, Stored
from rmq._model.display import counted
from rmq._model.schedules import RECURRING
from rmq._model.topics import Topic, TopicType
from rmq._transport.connections import Connections, call_slots
from rmq.errors import InvalidValueError, RmqError, TopicInUseError

QUERY_MS = 60_000
"""Time since its last report up to which a Spark query counts as running, ms."""

MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """What became of a deleted topic.

    Attributes:
        topic: Its name.
        slots: Number of its slots.
        messages: Number of messages that were dropped, dead ones too; on a stream topic of entries, acked ones too, and
            of the groups' dead ones.
        schedules: Names of schedules that send to it, which now fail.

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
        if name == RECURRING.name:
            raise InvalidValueError(f"topic {name} has the schedules; `rmq schedules remove NAME` removes one of them")
        self._connections, self._known, self._name, self._actor = connections, known, name, actor

    def run(self, *, force: bool, forget: bool) -> DeletedTopic:
        """Delete the topic, or end a deletion that was interrupted."""
        stored = self._known.stored(self._name)
        topic, schedules = stored.topic, self._schedules()
        audit = Audit(self._connections, topic, self._actor)
        if stored.deletion is None and not force:
            self._refuse_if_used(topic, schedules)
        with audit.step("delete topic", "with all that it holds" if force else "if it is empty") as note:
            stored, deletion = self._begun(audit.actor)
            messages = self._drop_slots(stored, deletion, force, note)
            if not deletion.done:
                self._known.replace_fields(stored, deletion.completed().to_fields())
            self._connections.command("UNLINK", rate_key(self._name))
            self._connections.command("UNLINK", history_key(self._name))
        if forget:
            self._clear(topic, deletion)
            self._known.replace_fields(self._known.stored(self._name), None)
        self._known.forget(self._name)
        return DeletedTopic(self._name, topic.slots, messages, schedules)

    def _begun(self, actor: str) -> tuple[Stored, Deletion]:
        """Note in the definition that the topic is being deleted, unless it says so already."""
        for _ in range(MOST_TRIES):
            stored = self._known.stored(self._name)
            if stored.deletion is not None:
                return stored, stored.deletion
            second, micros = self._connections.command("TIME", key=TOPICS_KEY)
            deletion = Deletion(token_hex(8), actor, int(second) * 1000 + int(micros) // 1000)
            self._known.replace_fields(stored, deletion.to_fields())
        raise RmqError(f"topic {self._name} was changed by other clients during each attempt; try again")

    def _drop_slots(self, stored: Stored, deletion: Deletion, force: bool, note: Callable[[str], None]) -> int:
        """Drop all slots; return the number of messages. Without `force`, one that holds some undoes the deletion."""
        topic, messages = stored.topic, 0
        for slot in range(topic.slots):
            outcome, number = self._drop_slot(topic, slot, deletion, force)
            if outcome == "kept":
                self._clear(topic, deletion)
                self._known.replace_fields(stored, {}, DELETED)
                raise self._in_use([f"slot {slot} got {counted(number, 'message')} meanwhile"])
            if outcome == "cleared":
                raise RmqError(f"the deletion of topic {self._name} was ended by another client; see what there is now")
            messages += number
            note(f"dropped {counted(messages, 'message')}")
        return messages

    def _drop_slot(self, topic: Topic, slot: int, deletion: Deletion, force: bool) -> SlotDeletion:
        groups: tuple[str, ...] = ()
        while True:
            done = self._connections.run(delete_slot(topic, slot, deletion.id, groups, force=force))
            if done.outcome != "groups":
                break
            groups = self._connections.run(streams.stats(topic, slot)).groups
        for group in groups:
            self._connections.command("UNLINK", group_rate_key(topic.name, group))
        return done

    def _clear(self, topic: Topic, deletion: Deletion) -> None:
        call_slots(self._connections, range(topic.slots), lambda slot: clear_slot(topic, slot, deletion.id))

    def _schedules(self) -> tuple[str, ...]:
        infos = Schedules(self._connections, self._known, lambda: None).list()
        return tuple(
            info.name for info in infos if getattr(info.schedule.topic, "name", info.schedule.topic) == self._name
        )

    def _refuse_if_used(self, topic: Topic, schedules: tuple[str, ...]) -> None:
        """Raise `TopicInUseError` if the topic holds messages, or a process uses it that can be seen in Redis."""
        used: list[str] = []
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

    def _in_use(self, used: list[str]) -> TopicInUseError:
        return TopicInUseError(
            f"topic {self._name} was not deleted: {'; '.join(used)}; use force (--force) to delete it all the same",
            topic=self._name,
        )
