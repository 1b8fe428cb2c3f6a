"""The due times of slots: decides which to claim from next. No I/O, and no clock of its own.

Level-triggered: the due slots are computed each time from the known state of every slot, so that no lost timer or hint
can stop delivery permanently.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import count

STALE_ENTRIES = 64
"""Number of entries beyond twice the slots at which the heap of times is rebuilt."""


class DueTimes:
    """The due times of a consumer's slots, as epoch milliseconds of Redis, mapped to a monotonic clock.

    `_due_ms` has the valid times. The heap of times only finds the slots that have become due: each new time adds an
    entry, and an entry is stale if its slot has another time by now. The heap of turns has the slots that are due: the
    one claimed from longest ago is in front.

    Args:
        slots: The slots to watch; each is due at once until a reply states its due time.
    """

    def __init__(self, slots: Iterable[int]) -> None:
        self._due_ms: dict[int, int] = dict.fromkeys(slots, 1)
        self._turns = count()
        self._turn = {slot: next(self._turns) for slot in self._due_ms}
        self._later = [(due_ms, slot) for slot, due_ms in self._due_ms.items()]
        heapify(self._later)
        self._ready: set[int] = set()
        self._queue: list[tuple[int, int]] = []
        self._offset_ms: float | None = None

    def due_ms(self, slot: int) -> int:
        """Return the known due time of a slot; 0 for never."""
        return self._due_ms.get(slot, 0)

    def set_slots(self, slots: Iterable[int]) -> None:
        """Watch exactly these slots; new ones are due at once."""
        watched = set(slots)
        for removed in self._due_ms.keys() - watched:
            del self._due_ms[removed], self._turn[removed]
            self._ready.discard(removed)
        for slot in sorted(watched - self._due_ms.keys()):
            self._turn[slot] = next(self._turns)
            self._set(slot, 1)

    def sync_clock(self, redis_now_ms: int, received_s: float, sent_s: float | None = None) -> None:
        """Synchronise with Redis' clock from a reply.

        Redis read its time between sending and receiving, so the offset of the two clocks lies within a range. The
        latest start of all ranges is kept: it is never early, and late by no more than the shortest round trip.

        Args:
            redis_now_ms: The time in the reply.
            received_s: Time at which the reply arrived, on the monotonic clock.
            sent_s: Time at which its call was sent; by default that of the reply.
        """
        least_ms = redis_now_ms - received_s * 1000
        most_ms = redis_now_ms + 1 - (received_s if sent_s is None else sent_s) * 1000
        known_ms = self._offset_ms
        if known_ms is None or not least_ms <= known_ms <= most_ms:
            self._offset_ms = least_ms
            if known_ms is None or known_ms > most_ms:  # Redis' clock was set back: some may not be due any more
                self._ready.clear()
                self._queue.clear()
                self._rebuild()

    def learn(self, times: Iterable[tuple[int, int]], now_ms: int, received_s: float, sent_s: float) -> bool:
        """Update the due times of slots from replies; return whether a slot is due now.

        Args:
            times: Slots, and when each is due; 0 for never. Hints that arrived since the call still apply.
            now_ms: Redis' time; 0 if no reply has it.
            received_s: Time at which the replies arrived, on the monotonic clock.
            sent_s: Time at which their calls were sent.
        """
        known = self._due_ms
        for slot, due_ms in times:
            if due_ms and slot in known and not 0 < known[slot] <= due_ms:
                known[slot] = due_ms
                self._ready.discard(slot)
                heappush(self._later, (due_ms, slot))
        if now_ms:
            self.sync_clock(now_ms, received_s, sent_s)
        self._advance(received_s)
        return bool(self._ready)

    def hint(self, slot: int, due_ms: int) -> None:
        """Process a wake hint: the slot is due at this time at the latest; 0 means at once."""
        known = self._due_ms.get(slot)
        due_ms = due_ms or 1
        if known is not None and (known == 0 or due_ms < known):
            self._set(slot, due_ms)

    def postpone(self, slot: int, monotonic_s: float, pause_s: float) -> None:
        """Postpone a slot, for example after a failed claim; then it is due, whatever its known due time."""
        if self._offset_ms is None:
            self.sync_clock(1, monotonic_s)  # any clock will do until Redis has told its own
        if slot in self._due_ms:
            self._set(slot, max(1, int(self._advance(monotonic_s) + pause_s * 1000)))

    def due(self, monotonic_s: float, most: int) -> list[int]:
        """Return up to `most` slots to claim from now, the longest unclaimed ones first."""
        self._advance(monotonic_s)
        queue, entries = self._queue, list[tuple[int, int]]()
        while queue and len(entries) < most:
            turn, slot = entry = heappop(queue)
            if slot in self._ready and self._turn[slot] == turn and entry not in entries[-1:]:
                entries.append(entry)
        for entry in entries:
            heappush(queue, entry)
        return [slot for _, slot in entries]

    def picked(self, slots: Iterable[int]) -> None:
        """Record that slots are being claimed from: they are not due until a reply or a hint, and then last in turn."""
        for slot in slots:
            if slot in self._due_ms:
                self._due_ms[slot] = 0
                self._ready.discard(slot)
                self._turn[slot] = next(self._turns)

    def served(self, slots: Iterable[int]) -> None:
        """Record that slots had their turn, so that the others are first next time."""
        for slot in slots:
            if slot in self._turn:
                self._turn[slot] = next(self._turns)
                if slot in self._ready:
                    heappush(self._queue, (self._turn[slot], slot))

    def wait_s(self, monotonic_s: float, longest_s: float) -> float:
        """Return the seconds until a slot is due, at most `longest_s`."""
        now_ms = self._advance(monotonic_s)
        if self._ready:
            return 0.0
        return min(longest_s, max(0.0, (self._later[0][0] - now_ms) / 1000)) if self._later else longest_s

    def _set(self, slot: int, due_ms: int) -> None:
        self._due_ms[slot] = due_ms
        self._ready.discard(slot)
        if due_ms:
            heappush(self._later, (due_ms, slot))

    def _advance(self, monotonic_s: float) -> float:
        """Move due slots to the ready queue, drop stale heap entries, and return Redis' time in ms."""
        if len(self._later) > 2 * len(self._due_ms) + STALE_ENTRIES:
            self._rebuild()
        # while the time is unknown, all slots are due anyway
        now_ms = 1 if self._offset_ms is None else self._offset_ms + monotonic_s * 1000
        later, known = self._later, self._due_ms
        while later and (later[0][0] <= now_ms or known.get(later[0][1]) != later[0][0]):
            due_ms, slot = heappop(later)
            if known.get(slot) == due_ms and slot not in self._ready:
                self._ready.add(slot)
                heappush(self._queue, (self._turn[slot], slot))
        return now_ms

    def _rebuild(self) -> None:
        self._later = [(due_ms, slot) for slot, due_ms in self._due_ms.items() if due_ms and slot not in self._ready]
        heapify(self._later)
