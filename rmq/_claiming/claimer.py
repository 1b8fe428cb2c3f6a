"""Plans claims from a topic's slots, fairly and only where something is due. Shared by consumers and listeners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rmq._claiming.claim_round import FIRST_SLOTS, ClaimPlan, Visit, next_width
from rmq._claiming.due_poller import DuePoller
from rmq._claiming.due_slots import DueSlots
from rmq._claiming.prefetch_size import Weights
from rmq._claiming.rate_limit import Throttle
from rmq._claiming.takeovers import TROUBLE_PAUSE_S, Takeovers
from rmq._claiming.wake_hints import Hints
from rmq._model.deliveries import Delivery
from rmq._model.owner import NO_OWNER, Owner
from rmq._model.replies import ClaimReply
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic
from rmq._scripts.claiming import CLAIM_BYTES, MAX_BATCH
from rmq._scripts.keys import slot_keys
from rmq._slots.slots import SlotWriter
from rmq._slots.source import Source
from rmq._transport.connections import Connections

SILENT_SLOTS_PER_S = 10_000
"""Most slots of servers that do not answer that are tried again in a second."""

IDLE_S = 0.02
"""A holder with nothing to claim for this long is idle: its acks do not wait for a claim."""


class Claimer:
    """Knows when each slot is due, and plans claims there; a `ClaimExecutor` carries them out. Thread-safe.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        slots: The slots to claim from.
        may_claim: Asked right before each claim whether the slot still is this owner's; yes by default.
        source: The slots themselves; those of the topic's own type by default.
        on_fenced: Called with the epoch of a newer owner that has touched one of these slots.
    """

    def __init__(
        self,
        connections: Connections,
        topic: Topic,
        slots: Sequence[int],
        may_claim: Callable[[int, Owner], bool] | None = None,
        source: Source[Any] | None = None,
        on_fenced: Callable[[int], object] | None = None,
    ) -> None:
        self.topic = topic
        self.connections = connections
        self.source: Source[Any] = source or SlotWriter(connections, topic)
        self.joins = connections.multi_slot_scripts and self.source.joins_claims
        """Whether claims from several slots share a call."""
        self.throttle = Throttle(connections, topic)
        self.due = DueSlots(connections.blocking, slots)
        self.on_fenced = on_fenced
        self._may_claim = may_claim
        self._owners: Mapping[int, Owner] = dict.fromkeys(slots, NO_OWNER)
        self._takeovers = Takeovers(connections, topic, self.due)
        self._poller = DuePoller(connections, self.source, self.due)
        self._weights = Weights(CLAIM_BYTES)
        self._width = FIRST_SLOTS
        self._resume: dict[int, int] = {}

    def set_owned(self, owners: Mapping[int, Owner]) -> None:
        """Claim from exactly these slots from now on, as these owners."""
        with self.due.changed:
            if owners != self._owners:
                self.due.schedule.set_slots(owners)
                self._owners = dict(owners)
                self.due.changed.notify_all()

    def wake_all(self) -> None:
        """Let threads in `wait` look again."""
        self.due.wake_all()

    def wait(self, longest_s: float) -> None:
        """Wait until a slot is due, something changes, or `longest_s` have passed."""
        self.due.wait(longest_s, self.throttle.dry_s())

    def wait_s(self, longest_s: float) -> float:
        """Return for how long nothing may be claimed, in seconds, at most `longest_s`."""
        return max(self.due.wait_s(longest_s), min(longest_s, self.throttle.dry_s()))

    def take_hints(self, hints: Hints) -> None:
        """Take what a hint reader has heard; hints for slots of others do no harm."""
        self._poller.missed = self._poller.missed or hints.missed
        if hints.due:
            self.due.hint(hints.due)

    def look(self, *, at_all: bool = False) -> None:
        """Ask Redis when each slot is due: catches lost hints, others' nacks and leases that ran out.

        In a cluster each slot costs a call of its own. There only some are looked at in turn, as long as hints arrive.

        Args:
            at_all: Look at all slots even so.

        Raises:
            RedisUnavailableError: No answer until the deadline.
            ScriptFailedError: A slot is broken; the others were looked at.
        """
        self.throttle.follow()
        self._poller.look(at_all)

    def expect(self, slot: int) -> None:
        """Take a slot for due: something has changed there that no claim has seen yet."""
        self.due.hint([(slot, 0)])

    def plan(self, limit: int, held: Iterable[Delivery] = ()) -> ClaimPlan:
        """Pick the slots to claim from.

        Slots due for longest go first, whatever is to be settled: else a slow handler, which claims one at a time,
        would never leave its slot. Where a slot costs a call of its own, slots that are settled are claimed from, too,
        if there is room; a shared call settles alone for a fifth.

        Args:
            limit: Most messages; 0 plans no claim. A rate limit of the topic may allow fewer.
            held: What the holder has. The outcomes among it go along.

        Returns:
            The plan, which has to be carried out: no other thread picks its slots until then.
        """
        tokens = 0
        if limit and self.throttle.limited:
            limit = tokens = self.throttle.take(limit) if self.wait_s(1.0) == 0 else 0
        if not limit:
            return ClaimPlan([], False)
        limit = self._weights.most(limit)
        visits = self._pick(min(self._width, limit), held)
        open_ = [visit for visit in visits if visit.owner == NO_OWNER or self._is_open(visit)]
        if open_:
            share, extra = divmod(limit, len(open_))
            for index, visit in enumerate(open_):
                visit.limit = min(share + (index < extra), MAX_BATCH)
        return ClaimPlan(visits, bool(visits) or self.wait_s(IDLE_S) < IDLE_S, tokens)

    def learn(self, visits: Sequence[Visit], sent_s: float) -> None:
        """Learn from replies when slots are due, what Redis' time is, and how large messages are.

        Args:
            visits: Those whose replies have come.
            sent_s: When their calls were sent, on the clock of `monotonic_s`.
        """
        now_ms = 0
        received_s = monotonic_s()
        with self.due.changed:
            schedule = self.due.schedule
            for visit in visits:
                reply = visit.reply
                if not isinstance(reply, ClaimReply):
                    schedule.postpone(visit.slot, received_s, TROUBLE_PAUSE_S)
                    continue
                now_ms = reply.now_ms
                if visit.limit and (reply.resume or visit.start):  # else nothing was searched
                    self._resume[visit.slot] = reply.resume
                if reply.next_due_ms:  # a hint may have come in the meantime, which this reply can't know of
                    schedule.hint(visit.slot, reply.next_due_ms)
            self._weigh(visits)
            if now_ms:
                schedule.sync_clock(now_ms, received_s, sent_s)
            if schedule.wait_s(received_s, 1.0) == 0:  # there is something for the others
                self.due.changed.notify_all()

    def take_over(self, visits: Sequence[Visit]) -> None:
        """Look whether slots that came from an earlier owner may be claimed from."""
        self._takeovers.take_over([(visit.slot, visit.owner) for visit in visits])

    def all_silent(self) -> bool:
        """Return whether no server of the slots answers at the moment."""
        return self.connections.some_silent and all(map(self.is_silent, list(self._owners)))

    def is_silent(self, slot: int) -> bool:
        """Return whether the server of a slot does not answer at the moment. Asks nobody."""
        return self.connections.silent(slot_keys(self.topic.name, slot).store)

    def _pick(self, most: int, held: Iterable[Delivery]) -> list[Visit]:
        with self.due.changed:
            slots = self._due_now(most)
            if not self.joins:
                slots += self._settled_too(held, slots)[: most - len(slots)]
            if self._may_claim is not None:
                slots = [slot for slot in slots if self._is_still_ours(slot, self._may_claim)]
            self.due.schedule.picked(slots)
            return [Visit(slot, self._owners[slot], start=self._resume.get(slot, 0)) for slot in slots]

    def _due_now(self, most: int) -> list[int]:
        """Return slots to claim from; those of servers that do not answer are put off, so that they cost no round."""
        now_s = monotonic_s()
        schedule = self.due.schedule
        due = schedule.due(now_s, most)
        while self.connections.some_silent and (silent := [slot for slot in due if self.is_silent(slot)]):
            pause_s = max(TROUBLE_PAUSE_S, len(self._owners) / SILENT_SLOTS_PER_S)
            for slot in silent:
                schedule.postpone(slot, now_s, pause_s)
            due = schedule.due(now_s, most)
        return due

    def _settled_too(self, held: Iterable[Delivery], picked: Sequence[int]) -> list[int]:
        """Return the slots that are settled in their present owner's name, and are not picked yet."""
        settled = [delivery for delivery in held if delivery.outcome is not None and not delivery.under_way]
        owners = dict.fromkeys((delivery.slot, delivery.owner) for delivery in settled)
        slots = [slot for slot, owner in owners if self._owners.get(slot) == owner and slot not in picked]
        return [slot for slot in slots if not self.is_silent(slot)] if self.connections.some_silent else slots

    def _is_still_ours(self, slot: int, may_claim: Callable[[int, Owner], bool]) -> bool:
        if may_claim(slot, self._owners[slot]):
            return True
        self.due.schedule.postpone(slot, monotonic_s(), TROUBLE_PAUSE_S)  # until we are told whose it is
        return False

    def _is_open(self, visit: Visit) -> bool:
        """Return whether this owner may claim there; one that lost a slot and has it back with its epoch may."""
        return self.source.awaits_owners or self._takeovers.is_open(visit.slot, visit.owner)

    def _weigh(self, visits: Iterable[Visit]) -> None:
        """Learn how large messages are; where some filled the call, the slots that got nothing go first next time."""
        asked = number = size_bytes = 0
        served: list[int] = []
        filled = False
        for visit in visits:
            reply = visit.reply
            if not visit.limit or not isinstance(reply, ClaimReply):
                continue
            asked += visit.limit
            if messages := reply.messages:
                number += len(messages)
                size_bytes += len(messages[0].content) * len(messages)
                size_bytes += sum(map(len, [message.body for message in messages if message.body is not None]))
                served.append(visit.slot)
            elif 0 < reply.next_due_ms <= reply.now_ms:
                filled = True
        if asked:
            self._width = next_width(self._width, asked, number)
        if number:
            self._weights.note(number, size_bytes)
            if filled:
                self.due.schedule.served(served)
