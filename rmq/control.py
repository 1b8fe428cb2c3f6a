"""Steering single messages by their content."""

from __future__ import annotations

from rmq.connections import Connections
from rmq.durations import MAX_SCORE, Duration, Instant, duration_ms, instant_ms
from rmq.errors import InvalidValueError
from rmq.messages import Payload, payload_bytes
from rmq.results import ControlResult
from rmq.slot import SlotWriter
from rmq.topics import Topic


class Control:
    """Cancels and reschedules messages of one topic.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
    """

    def __init__(self, connections: Connections, topic: Topic) -> None:
        self._writer = SlotWriter(connections, topic)
        self.topic = topic

    def cancel(self, content: Payload, slot_basis: Payload | None = None) -> ControlResult:
        """Take a message out of the backlog, or out of its wait for a retry.

        Args:
            content: Content of the message.
            slot_basis: Slot basis it was sent with, if any.

        Returns:
            `DONE`, `IN_FLIGHT` (only in a handler's hands: not touched), or `ABSENT`.

        Guarantee: atomic; safe to repeat.
        """
        name, slot = self._place(content, slot_basis)
        return self._writer.cancel(slot, [name])[0]

    def reschedule(
        self,
        content: Payload,
        *,
        due_in: Duration | None = None,
        fixed_time: Instant | None = None,
        priority: int | None = None,
        slot_basis: Payload | None = None,
    ) -> ControlResult:
        """Give a message of the backlog, or one that waits for a retry, another due time or priority.

        Args:
            content: Content of the message.
            due_in: Time topics: due after so long, `timedelta` or ms; 0 for at once.
            fixed_time: Time topics: due at this time: aware `datetime` or epoch ms, ahead of Redis' time.
            priority: PRIORITY topics: the new priority.
            slot_basis: Slot basis it was sent with, if any.

        Returns:
            `DONE`, `IN_FLIGHT` (only in a handler's hands: not touched), or `ABSENT`.

        Raises:
            InvalidValueError: Not exactly one of the three, or one that this topic type does not have.
            FixedTimePassedError: `fixed_time` does not lie ahead.

        Guarantee: atomic; safe to repeat. The message is fresh: it has all its retries.
        """
        given = [value for value in (due_in, fixed_time, priority) if value is not None]
        if len(given) != 1:
            raise InvalidValueError("reschedule takes exactly one of due_in, fixed_time and priority")
        if self.topic.type.timed == (priority is not None):
            rule = "has due times, no priorities" if self.topic.type.timed else "has priorities, no due times"
            raise InvalidValueError(f"topic {self.topic.name} is {self.topic.type.name}: it {rule}")
        name, slot = self._place(content, slot_basis)
        if due_in is not None:
            kind, value = "after", duration_ms(due_in, "due_in")
        elif fixed_time is not None:
            kind, value = "at", instant_ms(fixed_time, "fixed_time")
        else:
            kind, value = "priority", self._checked_priority(priority)
        return self._writer.reschedule(slot, [name], kind, value)[0]

    def _checked_priority(self, priority: int | None) -> int:
        lowest = self.topic.max_retries + 1
        if type(priority) is not int or not lowest <= priority <= MAX_SCORE:
            raise InvalidValueError(
                f"priority is {priority!r}; on topic {self.topic.name} it must be a whole number from {lowest} "
                "to 2^53 - 1"
            )
        return priority

    def _place(self, content: Payload, slot_basis: Payload | None) -> tuple[bytes, int]:
        name = payload_bytes(content, "content")
        basis = name if slot_basis is None else payload_bytes(slot_basis, "slot_basis")
        return name, self.topic.slot_of(basis)
