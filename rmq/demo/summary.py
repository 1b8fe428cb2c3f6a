"""What a run of the demo came to: figures, and the promises checked against them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rmq import DeadMessage
from rmq.demo.accounts import Account
from rmq.demo.handled import Handled, Spread, outdated, overlaps, spread
from rmq.demo.jobs import CUSTOMER_PICTURE, Tier


@dataclass(frozen=True, slots=True)
class Check:
    """A promise, and whether the run kept it."""

    name: str
    kept: bool
    words: str


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that is known about a run when it has ended.

    Attributes:
        seconds: In how many seconds the day was to pass.
        elapsed_s: From the first send until nothing was left.
        lines: Order lines played.
        accounts: What Redis counted, a topic each.
        records: What the workers wrote down.
        last_sent_s: Per topic and content when it was last sent.
        dead: What died.
    """

    seconds: float
    elapsed_s: float
    lines: int
    accounts: tuple[Account, ...]
    records: Sequence[Handled]
    last_sent_s: Mapping[tuple[str, str], float]
    dead: Sequence[DeadMessage]

    def lateness(self, topic: str) -> Spread:
        """Return how late a topic's first deliveries began."""
        return spread(record.late_ms for record in self.records if record.topic == topic)

    def lateness_of_tier(self, tier: Tier) -> Spread:
        """Return how long the pictures for customers of a tier waited."""
        mine = [each for each in self.records if each.topic == CUSTOMER_PICTURE.name and each.tier == tier.name]
        return spread(record.late_ms for record in mine)

    @property
    def rate_per_s(self) -> float:
        """Deliveries per second over the whole run."""
        return len(self.records) / self.elapsed_s

    def checks(self) -> list[Check]:
        """Return all checks."""
        left = sum(account.left for account in self.accounts)
        wrong = [account.topic for account in self.accounts if account.missing]
        doubled = overlaps(self.records)
        early = sum(record.early for record in self.records)
        dead = {(message.topic, message.text) for message in self.dead}
        old = [content for _, content in outdated(self.last_sent_s, self.records, dead)]
        return [
            _check("accounts", "every accepted message is done, merged, dead or cancelled", wrong, "wrong in"),
            _check("empty", "nothing in store, prepare or retry", left, "messages left:"),
            _check("no overlap", "no content was in two hands at once", doubled, "two hands on one content:"),
            _check("not early", "none before its time", early, "before their time:"),
            _check("up to date", "each was done after its last send, or died", old, "not done since their last send:"),
        ]

    @property
    def exit_code(self) -> int:
        """0 if all promises were kept, else 1."""
        return 0 if all(check.kept for check in self.checks()) else 1

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return {
            "ok": self.exit_code == 0,
            "seconds": self.seconds,
            "elapsed_s": round(self.elapsed_s, 3),
            "order_lines": self.lines,
            "deliveries_per_s": round(self.rate_per_s, 1),
            "topics": {
                account.topic: {
                    **{name: value for name, value in asdict(account).items() if name != "topic"},
                    "left": account.left,
                    "missing": account.missing,
                    "lateness": asdict(self.lateness(account.topic)),
                }
                for account in self.accounts
            },
            "lateness_by_tier": {tier.name.lower(): asdict(self.lateness_of_tier(tier)) for tier in reversed(Tier)},
            "checks": {check.name: {"kept": check.kept, "words": check.words} for check in self.checks()},
            "dead": [
                {
                    "topic": message.topic,
                    "content": message.text,
                    "attempts": message.attempts,
                    "error": f"{message.error_type}: {message.error_message}",
                }
                for message in self.dead
            ],
        }


def _check(name: str, kept: str, against: int | Sequence[str], broken: str) -> Check:
    """Return a check that is kept if nothing, or none, speaks against it."""
    found = f"{against:,}" if isinstance(against, int) else f"{', '.join(against[:3])} ({len(against):,})"
    return Check(name, not against, f"{broken} {found}" if against else kept)
