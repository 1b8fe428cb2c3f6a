"""Steering a topic: single messages by their content, and the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq._admin.dead_letters import new_score
from rmq._model.messages import Payload, payload_bytes
from rmq._model.replies import ControlResult, Redriven
from rmq._model.times import MAX_SCORE, Duration, Instant, duration_ms, instant_ms
from rmq._model.topics import Topic
from rmq._scripts import viewing
from rmq._slots.audit import Audit
from rmq._slots.each import checked_slots
from rmq._slots.slots import SlotWriter
from rmq._transport.connections import Connections
from rmq.errors import InvalidValueError


class Control:
    """Steers one topic. Each step leaves a line in the audit.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        actor: Who does it, 1 to 256 characters; `user@host` by default.

    Raises:
        InvalidValueError: `actor` is empty or too long.
    """

    def __init__(self, connections: Connections, topic: Topic, actor: str | None = None) -> None:
        self._connections = connections
        self._writer = SlotWriter(connections, topic)
        self._audit = Audit(connections, topic, actor)
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
        result = self._writer.cancel(slot, [name], self._audit.actor)[0]
        self._audit.report("cancel", result.value, name)
        return result

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
        return self._reschedule("reschedule", content, due_in, fixed_time, priority, slot_basis)

    def reprioritise(self, content: Payload, priority: int, slot_basis: Payload | None = None) -> ControlResult:
        """Give a message of the backlog, or one that waits for a retry, another priority; PRIORITY topics only.

        Returns, Raises and Guarantee: as `reschedule`.
        """
        return self._reschedule("reprioritise", content, None, None, priority, slot_basis)

    def promote(self, content: Payload, slot_basis: Payload | None = None) -> ControlResult:
        """Make a message of the backlog, or one that waits for a retry, due now; PRIORITY: put it before all others.

        Args:
            content: Content of the message.
            slot_basis: Slot basis it was sent with, if any.

        Returns:
            `DONE`, also where it was due already; `IN_FLIGHT` (only in a handler's hands: not touched), or `ABSENT`.

        Guarantee: atomic; safe to repeat. What waited for a retry keeps the retries it has left; on a PRIORITY topic
        it has all of them. First is first in its slot.
        """
        name, slot = self._place(content, slot_basis)
        result = self._writer.promote(slot, [name], self._audit.actor)[0]
        self._audit.report("promote", result.value, name)
        return result

    def redrive(self, content: Payload, slot_basis: Payload | None = None) -> Redriven:
        """Send a dead message again, as a fresh one with its body and all retries; many: `DeadLetters.redrive`.

        Returns:
            `DONE`, `MERGED` (a fresh copy stood in the backlog), or `ABSENT` (not among the dead).

        Guarantee: atomic; safe to repeat.
        """
        name, slot = self._place(content, slot_basis)
        kind, value = new_score(self.topic, None, None)
        result = self._writer.redrive(
            slot, kind, value, overwrite=False, limit=1, contents=[name], actor=self._audit.actor
        )[0]
        self._audit.report("redrive", result.value, name)
        return result

    def purge_dead(self, content: Payload, slot_basis: Payload | None = None) -> bool:
        """Drop a dead message for good; return whether it was there. Many: `DeadLetters.purge`."""
        name, slot = self._place(content, slot_basis)
        dropped = self._writer.purge_dead(slot, contents=[name], actor=self._audit.actor)
        self._audit.report("purge dead", f"dropped {dropped}", name)
        return dropped == 1

    def pause(self, slots: Sequence[int] | None = None) -> int:
        """Let nobody in the whole cluster claim from this topic, or from some slots of it.

        Sends, acks, retries of what was claimed and leases go on; what a worker has claimed ahead it still handles.

        Args:
            slots: Only these slots; all by default.

        Returns:
            How many slots were not paused before.

        Raises:
            InvalidValueError: A slot that the topic does not have.

        Guarantee: atomic per slot; safe to repeat.
        """
        return self._pause(slots, True)

    def resume(self, slots: Sequence[int] | None = None) -> int:
        """End a pause; return how many slots were paused. Otherwise as `pause`."""
        return self._pause(slots, False)

    def purge(
        self,
        place: str,
        *,
        confirm: str,
        slots: Sequence[int] | None = None,
        limit: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Drop the backlog, or what waits for a retry, for good. What is in flight is left alone.

        Args:
            place: `store` or `retry`.
            confirm: The topic's name once more, so that nobody does it by mistake.
            slots: Only these slots; all by default.
            limit: Most messages; no bound by default. The lowest scores of a slot go first.
            progress: Called with the number dropped so far.

        Returns:
            How many were dropped; what is sent meanwhile is left alone as far as its number goes.

        Raises:
            InvalidValueError: `confirm` is not the topic's name, another place, or a slot that the topic does not have.

        Guarantee: atomic per call of up to 1,000 messages.
        """
        if confirm != self.topic.name:
            raise InvalidValueError(
                f"purge drops messages for good: confirm it with the topic's name, {self.topic.name}"
            )
        if place not in ("store", "retry"):
            raise InvalidValueError(f"place is {place!r}; it must be store or retry")
        wanted = checked_slots(self.topic, slots)
        left = MAX_SCORE if limit is None else limit
        dropped = 0
        with self._audit.step("purge", f"{place} of {_slots_text(self.topic, slots)}") as note:
            for slot in wanted:
                stats = self._connections.run(viewing.stats(self.topic, slot))
                size = min(left - dropped, stats.backlog if place == "store" else stats.waiting)
                while size > 0 and (done := self._writer.purge_backlog(slot, place, size)):
                    size, dropped = size - done, dropped + done
                    note(f"dropped {dropped}")
                    if progress is not None:
                        progress(dropped)
        return dropped

    def _pause(self, slots: Sequence[int] | None, paused: bool) -> int:
        wanted, detail = checked_slots(self.topic, slots), _slots_text(self.topic, slots)
        changed = sum(self._writer.pause_many(wanted, paused, self._audit.actor, detail))
        self._audit.report("pause" if paused else "resume", f"{changed} slots changed", detail=detail)
        return changed

    def _reschedule(
        self,
        action: str,
        content: Payload,
        due_in: Duration | None,
        fixed_time: Instant | None,
        priority: int | None,
        slot_basis: Payload | None,
    ) -> ControlResult:
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
        result = self._writer.reschedule(slot, [name], kind, value, self._audit.actor, action)[0]
        self._audit.report(action, result.value, name, f"{kind} {value}")
        return result

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


def _slots_text(topic: Topic, slots: Sequence[int] | None) -> str:
    if slots is None:
        return f"all {topic.slots} slots"
    named = ", ".join(map(str, slots[:20]))
    return f"slots {named}" + (f" and {len(slots) - 20} more" if len(slots) > 20 else "")
