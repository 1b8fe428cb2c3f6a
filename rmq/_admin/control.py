"""Control of a topic: changes single messages by content, or pauses, resumes and purges the topic. And its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rmq._admin.calls import dead, viewing
from rmq._admin.calls.dead import NewScore
from rmq._admin.dead_letters import new_score
from rmq._admin.messages import SECTIONS
from rmq._admin.search import glob_of, search
from rmq._admin.view import locate, most
from rmq._broker.binding import SAFE_AGAIN, BoundScript
from rmq._broker.claims import MAX_BATCH
from rmq._broker.keys import group_keys, slot_keys
from rmq._model.display import counted, shown
from rmq._model.messages import Payload
from rmq._model.replies import CancelledMatches, ControlResult, Redriven
from rmq._model.times import Duration, Instant
from rmq._model.topics import Topic, checked_slots
from rmq._registry.audit import Audit, confirm_all
from rmq._transport.call import Call, is_one
from rmq._transport.connections import Connections, call_slots
from rmq._transport.exchange import results_of
from rmq.errors import InvalidValueError

_CANCEL, _RESCHEDULE, _PROMOTE, _PAUSE, _ADOPT = (
    BoundScript(name, durable=SAFE_AGAIN) for name in "cancel reschedule promote pause adopt".split()
)
_PURGE_BACKLOG = BoundScript(
    "purge_backlog", repeatable=False, durable="Repeating it also deletes messages that were sent in the meantime"
)

CONTROL_BATCH = 256
"""Maximum number of messages that one call cancels, reschedules, promotes or deletes by name."""

EXAMINED = 20_000
"""Approximate number of messages that `cancel_matching` examines before it cancels those that match."""


def promote(topic: Topic, slot: int, contents: Sequence[bytes], actor: str = "") -> Call[list[ControlResult]]:
    """Return a call that makes up to `CONTROL_BATCH` contents due now. An empty `actor` writes no audit line."""
    return _PROMOTE.call(topic, slot, control_results, actor=actor, contents=contents)


def pause(
    topic: Topic, slot: int, paused: bool, actor: str = "", detail: str = "", group: str | None = None
) -> Call[bool]:
    """Return a call that pauses or resumes a slot, or a group on it; its result is whether that changed anything."""
    keys = _meta_key(topic, slot, group)
    return _PAUSE.call(topic, slot, is_one, keys=keys, pause=int(paused), actor=actor, detail=detail)


def purge_backlog(topic: Topic, slot: int, place: str, limit: int) -> Call[int]:
    """Return a call that removes up to `limit` messages from `store` or `retry`; its result is their number."""
    source: str = getattr(slot_keys(topic.name, slot), place)
    return _PURGE_BACKLOG.call(topic, slot, int, keys={"source": source}, limit=limit)


def cancel(topic: Topic, slot: int, contents: Sequence[bytes], actor: str = "") -> Call[list[ControlResult]]:
    """Return a call that cancels up to `CONTROL_BATCH` contents."""
    return _CANCEL.call(topic, slot, control_results, actor=actor, contents=contents)


def reschedule(
    topic: Topic, slot: int, contents: Sequence[bytes], score: NewScore, actor: str = "", action: str = "reschedule"
) -> Call[list[ControlResult]]:
    """Return a call that gives up to `CONTROL_BATCH` contents a new due time or priority."""
    args: dict[str, Any] = {"kind": score[0], "value": score[1], "actor": actor, "action": action, "contents": contents}
    return _RESCHEDULE.call(topic, slot, control_results, **args)


@dataclass(frozen=True, slots=True)
class Adopted:
    """The last owner of a slot, and whether the slot was moved.

    Attributes:
        ensemble: Identity of the ensemble that counted its epochs; empty for a slot without an owner so far.
        epoch: The highest epoch that has claimed from the slot.
        moved: Whether this call moved the slot.
    """

    ensemble: str
    epoch: int
    moved: bool


def adopt(topic: Topic, slot: int, from_ensemble: str, to_ensemble: str, group: str | None = None) -> Call[Adopted]:
    """Return a call that moves a slot, or a group's part of it, to another ensemble; it only reads if none is given."""

    def parse(reply: list[bytes]) -> Adopted:
        return Adopted(reply[0].decode(), int(reply[1]), is_one(reply[2]))

    keys, durable = _meta_key(topic, slot, group), bool(from_ensemble)
    args = {"from_ensemble": from_ensemble, "to_ensemble": to_ensemble}
    return _ADOPT.call(topic, slot, parse, keys=keys, durable=durable, **args)


def control_results(reply: list[bytes]) -> list[ControlResult]:
    """Parse the results of a control action, one per content."""
    return [ControlResult(answer.decode()) for answer in reply]


def _meta_key(topic: Topic, slot: int, group: str | None) -> dict[str, str]:
    return {} if group is None else {"meta": group_keys(topic.name, slot, group).group}


class Control:
    """Controls one topic. Every action is recorded in the audit log.

    A message is identified by its content, and by the slot basis with which it was sent, if any.

    Actions are as durable as the client's `durability` requires: an action that was executed but not confirmed raises
    `DurabilityError`, even if another client executed it a moment before.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5))
        >>> control = client.control(jobs, actor="ann")
        >>> control.reprioritise("job:1", 9).name, control.cancel("job:1").name
        ('DONE', 'DONE')
    """

    def __init__(self, connections: Connections, topic: Topic, actor: str | None = None) -> None:
        self._connections = connections
        self._audit = Audit(connections, topic, actor)
        self.topic = topic

    def cancel(self, content: Payload, slot_basis: Payload | None = None) -> ControlResult:
        """Remove a message that is in the backlog or waits for a retry.

        Returns:
            `DONE`, `IN_FLIGHT` (being handled; unchanged), or `ABSENT`, also for a dead message.

        Guarantee: atomic; safe to repeat.
        """
        return self._apply("cancel", partial(cancel, self.topic), content, slot_basis)

    def cancel_matching(
        self,
        pattern: Payload | None = None,
        *,
        prefix: Payload | None = None,
        slots: Sequence[int] | None = None,
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> CancelledMatches:
        """Remove all matching messages that are in the backlog or wait for a retry.

        Messages in flight are not changed. If one of them fails and waits for a retry, a second call removes it. Dead
        messages stay; see `DeadLetters.purge`.

        Args:
            pattern: Pattern for the content, with Redis' `*`, `?` and `[...]`.
            prefix: Literal start of the content, instead of a pattern.
            slots: Only these slots; all by default.
            dry_run: Only count the matches. Messages may be counted twice if others are sent or removed meanwhile.
            progress: Called with the number of messages removed so far; not called with `dry_run`.

        Returns:
            The number of messages that were removed, or with `dry_run` would be, and of those found in flight.

        Raises:
            InvalidValueError: Not exactly one of `pattern` and `prefix` is given, or the topic does not have one of the
                slots.

        Guarantee: atomic per call of up to 256 messages of a slot; safe to repeat. Messages that are sent meanwhile may
            be left. The audit log has an entry for the start and one for the end; none for a dry run.
        """
        if (pattern is None) is (prefix is None):
            raise InvalidValueError("cancel_matching takes either pattern or prefix; to remove all messages, use purge")
        glob, chosen = glob_of(pattern, prefix), checked_slots(self.topic, slots)
        if dry_run:
            return self._cancel_pages(glob, chosen, True, lambda found: None)
        what = f"prefix {shown(prefix or '')}" if pattern is None else f"pattern {shown(pattern)}"
        detail = f"{what} in {_slots_text(self.topic, slots)}"
        with self._audit.step("cancel matching", detail, progress) as note:

            def tell(found: CancelledMatches) -> None:
                note(f"cancelled {found.cancelled}; {found.in_flight} in flight", found.cancelled)

            found = self._cancel_pages(glob, chosen, False, tell)
            confirm_all(self._connections, self.topic)
        return found

    def _cancel_pages(
        self, glob: bytes, slots: Sequence[int], dry_run: bool, tell: Callable[[CancelledMatches], None]
    ) -> CancelledMatches:
        """Go through the matches page by page, and cancel those of a page before the next one is read."""
        done, cursor = CancelledMatches(0, 0), None
        while True:
            page = search(self._connections, self.topic, glob, SECTIONS[:3], slots, cursor, MAX_BATCH, EXAMINED)
            idle = {(each.slot, each.content) for each in page.messages if each.place != "prepare"}
            in_flight = done.in_flight + sum(each.place == "prepare" for each in page.messages)
            number = len(idle)
            if not dry_run:
                by_slot: dict[int, list[bytes]] = {}
                for slot, content in idle:
                    by_slot.setdefault(slot, []).append(content)
                calls = [
                    cancel(self.topic, slot, contents[first : first + CONTROL_BATCH])
                    for slot, contents in by_slot.items()
                    for first in range(0, len(contents), CONTROL_BATCH)
                ]
                replies = results_of(self._connections.run_many(calls)) if calls else []
                number = sum(result is ControlResult.DONE for reply in replies for result in reply)
            done = CancelledMatches(done.cancelled + number, in_flight)
            tell(done)
            cursor = page.cursor
            if cursor is None:
                return done

    def reschedule(
        self,
        content: Payload,
        *,
        due_in: Duration | None = None,
        fixed_time: Instant | None = None,
        priority: int | None = None,
        slot_basis: Payload | None = None,
    ) -> ControlResult:
        """Change the due time or priority of a message in the backlog, or of one that waits for a retry.

        Args:
            content: Content of the message.
            due_in: Time topics: delay until it is due, a `timedelta` or a text such as "5m"; "0s" for at once.
            fixed_time: Time topics: time at which it is due, an aware `datetime` in the future by Redis' clock.
            priority: PRIORITY topics: the new priority.
            slot_basis: Slot basis with which it was sent, if any.

        Returns:
            `DONE`, `IN_FLIGHT` (being handled; unchanged), or `ABSENT`, also for a dead message.

        Raises:
            InvalidValueError: Not exactly one of `due_in`, `fixed_time` and `priority` is given, topics of this type do
                not have it, or it is out of range.
            FixedTimePassedError: `fixed_time` is in the past.

        Guarantee: atomic; safe to repeat. The message has all its retries again.
        """
        return self._reschedule("reschedule", content, slot_basis, priority, due_in, fixed_time)

    def reprioritise(self, content: Payload, priority: int, slot_basis: Payload | None = None) -> ControlResult:
        """Change the priority of a message in the backlog, or of one that waits for a retry; PRIORITY topics only.

        Returns, Raises and Guarantee: as `reschedule`.
        """
        return self._reschedule("reprioritise", content, slot_basis, priority)

    def promote(self, content: Payload, slot_basis: Payload | None = None) -> ControlResult:
        """Make a message due now, in the backlog or waiting for a retry; on PRIORITY topics, put it before all others.

        Returns:
            `DONE`, even if it was due already; `IN_FLIGHT` (being handled; unchanged), or `ABSENT`, also for a dead
            message.

        Guarantee: atomic; safe to repeat. On time topics, a message that waited for a retry keeps its remaining
            retries. On PRIORITY topics, it has all its retries again, and is first in its slot, not in the whole topic.
        """
        return self._apply("promote", partial(promote, self.topic), content, slot_basis)

    def redrive(self, content: Payload, slot_basis: Payload | None = None) -> Redriven:
        """Send a dead message again, with its body and all retries. For many messages, see `DeadLetters.redrive`.

        Unless it merges, it is due at once; on PRIORITY topics it has the lowest priority.

        Returns:
            `DONE`, `MERGED` (with a message of the same content in the backlog), or `ABSENT` (not dead).

        Raises:
            SendError: Redis is full; the message stays dead.

        Guarantee: atomic; safe to repeat.
        """
        name, slot = locate(self.topic, content, slot_basis)
        score, actor = new_score(self.topic, None, None), self._audit.actor
        call = dead.redrive(self.topic, slot, score, overwrite=False, contents=[name], actor=actor)
        result = self._connections.run(call)[0]
        self._audit.report("redrive", result.value, name)
        return result

    def purge_dead(self, content: Payload, slot_basis: Payload | None = None) -> bool:
        """Delete a dead message; return whether it existed. For many messages, see `DeadLetters.purge`.

        Guarantee: atomic; safe to repeat.
        """
        name, slot = locate(self.topic, content, slot_basis)
        dropped = self._connections.run(dead.purge_dead(self.topic, slot, [name], self._audit.actor))
        self._audit.report("purge dead", f"dropped {dropped}", name)
        return dropped == 1

    def pause(self, slots: Sequence[int] | None = None) -> int:
        """Stop all claims from this topic, or from some of its slots, in the whole cluster.

        Sends, acks, nacks and renewals of leases go on. Messages that a worker has claimed already are still handled.

        Returns:
            Number of slots that were not paused before.

        Raises:
            InvalidValueError: The topic does not have one of the slots.

        Guarantee: atomic per slot; safe to repeat.
        """
        return self._pause(slots, True)

    def resume(self, slots: Sequence[int] | None = None) -> int:
        """End a pause of the topic, or of some of its slots; return the number of slots that were paused.

        Errors and guarantee as for `pause`.
        """
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
        """Delete the messages of the backlog, or those that wait for a retry. Messages in flight are not affected.

        Args:
            place: `store` (the backlog) or `retry` (waiting for a retry).
            confirm: The topic's name, as a safeguard against mistakes.
            slots: Only these slots; all by default.
            limit: Maximum number of messages; unlimited by default. The messages of a slot that are due first, or have
                the lowest priority, are deleted first.
            progress: Called with the number of messages deleted so far.

        Returns:
            Number of deleted messages: in each slot at most as many as it held when the purge reached it.

        Raises:
            InvalidValueError: `confirm` is not the topic's name, or `place`, `limit` or a slot is invalid.

        Guarantee: atomic per call of up to 1,000 messages, or 128 in a slot with bodies. A repeat deletes further
            messages.
        """
        if confirm != self.topic.name:
            raise InvalidValueError(f"confirm is {confirm!r:.80}; it must be the topic's name, {self.topic.name}")
        if place not in ("store", "retry"):
            raise InvalidValueError(f"place is {place!r}; it must be store or retry")
        chosen = checked_slots(self.topic, slots)
        left = most(limit, "limit")
        dropped = 0
        with self._audit.step("purge", f"{place} of {_slots_text(self.topic, slots)}", progress) as note:
            for slot in chosen:
                stats = self._connections.run(viewing.stats(self.topic, slot))
                size = min(left - dropped, stats.backlog if place == "store" else stats.waiting)
                while size > 0:
                    call = purge_backlog(self.topic, slot, place, min(size, MAX_BATCH))
                    if not (done := self._connections.run(call)):
                        break
                    size, dropped = size - done, dropped + done
                    note(f"dropped {dropped}", dropped)
            confirm_all(self._connections, self.topic)
        return dropped

    def _pause(self, slots: Sequence[int] | None, paused: bool) -> int:
        return set_paused(self._audit, checked_slots(self.topic, slots), paused, _slots_text(self.topic, slots))

    def _reschedule(
        self,
        action: str,
        content: Payload,
        slot_basis: Payload | None,
        priority: int | None,
        due_in: Duration | None = None,
        fixed_time: Instant | None = None,
    ) -> ControlResult:
        if [priority, due_in, fixed_time].count(None) != 2:
            raise InvalidValueError("reschedule takes exactly one of due_in, fixed_time and priority")
        score = new_score(self.topic, priority, due_in, fixed_time)
        step = partial(reschedule, self.topic, score=score, action=action)
        return self._apply(action, step, content, slot_basis, " ".join(map(str, score)))

    def _apply(
        self,
        action: str,
        step: Callable[..., Call[list[ControlResult]]],
        content: Payload,
        slot_basis: Payload | None,
        detail: str = "",
    ) -> ControlResult:
        name, slot = locate(self.topic, content, slot_basis)
        result = self._connections.run(step(slot, [name], actor=self._audit.actor))[0]
        self._audit.report(action, result.value, name, detail)
        return result


def set_paused(audit: Audit, slots: Sequence[int], paused: bool, detail: str, group: str | None = None) -> int:
    """Pause or resume slots, or a group on them; return the number of slots that changed. `detail` is for the audit."""

    def build(slot: int) -> Call[bool]:
        by = audit.actor if slot == slots[0] else ""  # one line for all of them
        return pause(audit.topic, slot, paused, by, detail, group)

    changed = sum(call_slots(audit.connections, slots, build, finish_all=True))
    audit.report("pause" if paused else "resume", f"{counted(changed, 'slot')} changed", detail=detail)
    return changed


def _slots_text(topic: Topic, slots: Sequence[int] | None) -> str:
    if slots is None:
        return f"all {topic.slots} slots"
    named = ", ".join(map(str, slots[:20]))
    return f"slots {named}" + (f" and {len(slots) - 20} more" if len(slots) > 20 else "")
