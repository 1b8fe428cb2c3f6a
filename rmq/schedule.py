"""When each slot has to be looked at: state in, decision out, no I/O and no clock of its own.

Level-triggered: what is due is worked out anew each time from what is known of every slot, so that no lost timer
or hint can stop delivery for good.
"""

from __future__ import annotations

from collections.abc import Iterable


class Schedule:
    """What a consumer knows of its slots. Times are Redis' epoch milliseconds, mapped to a monotonic clock.

    Args:
        slots: The slots to watch; each is due at once until a claim says otherwise.
    """

    def __init__(self, slots: Iterable[int]) -> None:
        self._due_ms: dict[int, int] = dict.fromkeys(slots, 1)
        self._order = list(self._due_ms)
        self._offset_ms: float | None = None

    @property
    def slots(self) -> list[int]:
        """The slots watched, in no particular order."""
        return list(self._due_ms)

    def set_slots(self, slots: Iterable[int]) -> None:
        """Watch exactly these slots; new ones are due at once."""
        wanted = set(slots)
        for gone in self._due_ms.keys() - wanted:
            del self._due_ms[gone]
        for slot in wanted - self._due_ms.keys():
            self._due_ms[slot] = 1
        self._order = [slot for slot in self._order if slot in wanted]
        known = set(self._order)
        self._order += sorted(wanted - known)

    def sync_clock(self, redis_now_ms: int, monotonic_s: float) -> None:
        """Learn Redis' time from a reply just received."""
        self._offset_ms = redis_now_ms - monotonic_s * 1000

    def redis_now_ms(self, monotonic_s: float) -> float:
        """Return what Redis' clock says by now; 1 while unknown, when all slots are due anyway."""
        return 1 if self._offset_ms is None else self._offset_ms + monotonic_s * 1000

    def note(self, slot: int, next_due_ms: int) -> None:
        """Take what a claim or a look said about a slot: due at this time, 0 for never."""
        if slot in self._due_ms:
            self._due_ms[slot] = next_due_ms

    def hint(self, slot: int, due_ms: int) -> None:
        """Take a wake hint: due at this time at the latest, 0 for at once."""
        known = self._due_ms.get(slot)
        due_ms = due_ms or 1
        if known is not None and (known == 0 or due_ms < known):
            self._due_ms[slot] = due_ms

    def postpone(self, slot: int, monotonic_s: float, pause_s: float) -> None:
        """Leave a slot alone for a while, since a claim failed there; due then, whatever is known of it."""
        if self._offset_ms is None:
            self.sync_clock(1, monotonic_s)  # any clock will do until Redis has told its own
        if slot in self._due_ms:
            self._due_ms[slot] = max(1, int(self.redis_now_ms(monotonic_s) + pause_s * 1000))

    def due(self, monotonic_s: float, most: int) -> list[int]:
        """Return up to `most` slots to claim from now; the ones claimed from longest ago first."""
        now_ms = self.redis_now_ms(monotonic_s)
        return [slot for slot in self._order if 0 < self._due_ms[slot] <= now_ms][:most]

    def served(self, slots: Iterable[int]) -> None:
        """Note that these slots had their turn: the others go first next time."""
        turn = [slot for slot in slots if slot in self._due_ms]
        had = set(turn)
        self._order = [slot for slot in self._order if slot not in had] + turn

    def wait_s(self, monotonic_s: float, longest_s: float) -> float:
        """Return how long nothing is due, in seconds, at most `longest_s`."""
        times = [due_ms for due_ms in self._due_ms.values() if due_ms]
        if not times:
            return longest_s
        return min(longest_s, max(0.0, (min(times) - self.redis_now_ms(monotonic_s)) / 1000))
