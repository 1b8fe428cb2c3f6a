"""The clock of a slot in plain Python: what docs/internals/semantics.md says of stamps and leases."""

from __future__ import annotations

from dataclasses import dataclass

LEAD_MS = 1_000
"""The lead of new stamps follows once they run so far ahead of it."""


@dataclass
class SlotClock:
    """Stamps of claims, and the time by which leases end.

    Attributes:
        lease_ms: The lease; all claims have the same.
        last: The last stamp, 0 before the first.
        seen_ms: Redis' time when the last stamp was noted.
        lead_ms: New stamps run ahead of Redis' time by at least this.
        skew_ms: Leases run by Redis' time plus this.
        mark: First stamp of the lead.
        text: What meta holds as `stamp`, empty before the first.
        lease: What meta holds as `lease`.
    """

    lease_ms: int
    last: int = 0
    seen_ms: int = 0
    lead_ms: int = 0
    skew_ms: int = 0
    mark: int = 0
    text: str = ""
    lease: str = ""

    def at(self, now_ms: int) -> SlotClock:
        """The clock as a script finds it: what Redis' clock was set back is made up for."""
        back = max(0, self.seen_ms - now_ms)
        return SlotClock(
            self.lease_ms, self.last, self.seen_ms, self.lead_ms + back, self.skew_ms + back, self.mark, self.text,
            self.lease,
        )  # fmt: skip

    def settle(self, now_ms: int, oldest: int | None) -> None:
        """Let the skew follow the lead where no lease can end early by that; both shrink where nothing is held."""
        if oldest is None:
            least = min(self.lead_ms, max(0, self.last + 1 - now_ms))
            self.lead_ms = self.skew_ms = least
        elif oldest >= self.mark * 1000:
            self.skew_ms = self.lead_ms

    def ends_ms(self, claim_score: int) -> int:
        """When a lease is over, by Redis' clock."""
        return claim_score // 1000 + self.lease_ms + 1 - self.skew_ms

    def is_over(self, claim_score: int, now_ms: int) -> bool:
        return self.ends_ms(claim_score) <= now_ms

    def draw(self, now_ms: int, highest: int, held: bool) -> int:
        """The stamp of a claim: above all before it."""
        self.last = self.last or highest // 1000
        stamp = max(now_ms + self.lead_ms, self.last + 1)
        ahead = stamp - now_ms
        if ahead > self.lead_ms + LEAD_MS:
            if not held:
                self.lead_ms = self.skew_ms = ahead
            elif self.lead_ms == self.skew_ms:
                self.lead_ms, self.mark = ahead, stamp
        return stamp

    def note(self, now_ms: int, stamp: int | None = None) -> None:
        """Write down the clock, and the stamp if one was used."""
        self.last, self.seen_ms = stamp or self.last, now_ms
        parts = (self.last, now_ms, self.lead_ms, self.skew_ms, self.mark)
        plain = not self.lead_ms and not self.skew_ms
        if plain:
            parts = parts[: 1 if self.last == now_ms else 2]
        self.text = " ".join(map(str, parts))
        if stamp:
            self.lease = str(self.lease_ms)
        if plain:
            self.mark = 0

    def fields(self) -> dict[str, str]:
        """What meta holds of it."""
        return {name: text for name, text in (("stamp", self.text), ("lease", self.lease)) if text}
