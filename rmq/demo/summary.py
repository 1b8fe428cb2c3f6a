"""What a run of the demo came to: figures of Redis, records of the workers, and the promises that it kept. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

from rmq import DeadMessage
from rmq._model.figures import TopicStats
from rmq.demo.drawn import PICTURE_TOPICS, Drawn, Saving, claims_by_tier, out_of_turn, renders, saving
from rmq.demo.handled import Handled
from rmq.demo.jobs import CUSTOMER_PICTURE, TAKINGS, Tier


@dataclass(frozen=True, slots=True)
class Account:
    """What a topic took in and what became of it since the demo began, as Redis counted it.

    `backlog`, `due`, `in_flight` and `waiting` are there now; `found` are messages that an earlier run had left.
    """

    topic: str
    accepted: int
    merged: int
    delivered: int
    retried: int
    acked: int
    cancelled: int
    dead: int
    backlog: int
    due: int
    in_flight: int
    waiting: int
    found: int

    @classmethod
    def between(cls, before: TopicStats, now: TopicStats) -> Account:
        """Return the account from one reading to another."""
        names = ("accepted", "merged", "delivered", "retried", "acked", "cancelled", "purged", "trimmed")
        grown = {name: now.total(name) - before.total(name) for name in names}
        # what somebody removed from the dead meanwhile died as well
        dead = now.dead - before.dead + grown.pop("purged") + grown.pop("trimmed")
        found = before.backlog + before.in_flight + before.waiting
        present = {"backlog": now.backlog, "due": now.due_now, "in_flight": now.in_flight, "waiting": now.waiting}
        return cls(now.topic.name, **grown, dead=dead, **present, found=found)

    @property
    def left(self) -> int:
        """Messages that are neither done nor dead: in store, prepare or retry."""
        return self.backlog + self.in_flight + self.waiting

    @property
    def missing(self) -> int:
        """0, always: accepted - merged = acked + dead + cancelled, once nothing is left."""
        return self.found + self.accepted - self.merged - self.acked - self.dead - self.cancelled - self.left


def total(accounts: Iterable[Account]) -> Account:
    """Return the sum of some accounts, at least one."""
    rows = [astuple(account)[1:] for account in accounts]
    return Account("all", *map(sum, zip(*rows, strict=True)))


def overlaps(records: Iterable[Handled]) -> int:
    """Return how often a handler began on a content while another one was still at it."""
    ends_s: dict[tuple[str, str], float] = {}
    count = 0
    for record in sorted(records, key=lambda each: each.started_s):
        key = (record.topic, record.content)
        count += record.started_s < ends_s.get(key, 0.0)
        ends_s[key] = max(record.ended_s, ends_s.get(key, 0.0))
    return count


def outdated(
    last_sent_s: Mapping[tuple[str, str], float], records: Iterable[Handled], dead: Collection[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the topic and content of messages that no handler has done since they were last sent.

    Args:
        last_sent_s: When the last send of each began, on the records' clock.
        records: What was handled.
        dead: Topic and content of what is dead, and so need not be done.
    """
    last_done_s: dict[tuple[str, str], float] = {}
    for record in records:
        if record.done:
            key = (record.topic, record.content)
            last_done_s[key] = max(record.started_s, last_done_s.get(key, 0.0))
    return [key for key, sent_s in last_sent_s.items() if key not in dead and last_done_s.get(key, 0.0) < sent_s]


def booked(records: Iterable[Handled]) -> dict[str, int]:
    """Return what the takings of each content come to, in pence, as their handler booked them.

    A delivery that comes back after it was booked has the same first send, and stands in its place.
    """
    values: dict[tuple[str, int | None], int] = {}
    for record in sorted(records, key=lambda each: each.started_s):
        if record.done and record.pence is not None:
            values[record.content, record.first_sent_ms] = record.pence
    sums: dict[str, int] = {}
    for (content, _), pence in values.items():
        sums[content] = sums.get(content, 0) + pence
    return sums


@dataclass(frozen=True, slots=True)
class Spread:
    """How late deliveries began: how many were measured, two percentiles, and the mean: it shows what a rush costs."""

    count: int
    p50_ms: int
    p99_ms: int
    mean_ms: int


def spread(late_ms: Iterable[int | None]) -> Spread:
    """Return the spread of all that were measured; all 0 without any."""
    known = sorted(each for each in late_ms if each is not None)
    if not known:
        return Spread(0, 0, 0, 0)
    p50_ms, p99_ms = (known[len(known) * percent // 100] for percent in (50, 99))
    return Spread(len(known), p50_ms, p99_ms, round(sum(known) / len(known)))


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
        takings: What the takings of each content are by the orders, in pence.
        drawn: The pictures; `None` for a run that draws none.
    """

    seconds: float
    elapsed_s: float
    lines: int
    accounts: tuple[Account, ...]
    records: Sequence[Handled]
    last_sent_s: Mapping[tuple[str, str], float]
    dead: Sequence[DeadMessage]
    takings: Mapping[str, int]
    drawn: Drawn | None = None

    def lateness(self, topic: str) -> Spread:
        """Return how late a topic's first deliveries began."""
        return spread(record.late_ms for record in self.records if record.topic == topic)

    def lateness_of_tier(self, tier: Tier) -> Spread:
        """Return how long the pictures for customers of a tier waited."""
        mine = [each for each in self.records if each.topic == CUSTOMER_PICTURE.name and each.tier == tier.name]
        return spread(record.late_ms for record in mine)

    @property
    def booked(self) -> dict[str, int]:
        """What the takings of each content came to in the queue, in pence."""
        return booked(self.records)

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
            self._sums(),
            self._tiers(),
            *self._pictures(),
        ]

    def _sums(self) -> Check:
        if any(account.found for account in self.accounts if account.topic == TAKINGS.name):
            return Check("sums", True, "not compared: an earlier run had left some takings")
        sums = self.booked
        differ = [each for each in sorted({*sums, *self.takings}) if sums.get(each) != self.takings.get(each)]
        return _check("sums", "each customer's takings are what the orders say", differ, "other sums:")

    def _tiers(self) -> Check:
        claims = list(claims_by_tier(self.records))
        words = f"larger customers first, in {len(claims):,} claims with several tiers"
        return _check("tiers", words, out_of_turn(claims), "claims with a smaller customer first:")

    def _pictures(self) -> Iterator[Check]:
        if self.drawn is None:
            return
        done = {each.content for each in self.records if each.pictured}
        acked = {account.topic: account.acked for account in self.accounts}
        wrong = [topic for topic in PICTURE_TOPICS if acked.get(topic, 0) != renders(self.records, topic)]
        wrong += sorted(done ^ set(self.drawn.prices))
        yield _check("pictures", "one drawn for each acked delivery, one file for each content", wrong, "wrong:")
        yield _check("newest price", "no picture is older than its item's newest price", self.drawn.old(), "old:")

    def savings(self) -> list[Saving]:
        """Return what merging saved, for each topic of pictures; none for a run that draws none."""
        if self.drawn is None:
            return []
        mine = [account for account in self.accounts if account.topic in PICTURE_TOPICS]
        return [saving(each.topic, each.accepted, each.merged, self.records) for each in mine]

    @property
    def exit_code(self) -> int:
        """0 if all promises were kept, else 1."""
        return 0 if all(check.kept for check in self.checks()) else 1

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        topics: dict[str, Any] = {}
        for account in self.accounts:
            figures = {name: value for name, value in asdict(account).items() if name != "topic"}
            figures |= {"left": account.left, "missing": account.missing}
            topics[account.topic] = {**figures, "lateness": asdict(self.lateness(account.topic))}
        return {
            "ok": self.exit_code == 0,
            "seconds": self.seconds,
            "elapsed_s": round(self.elapsed_s, 3),
            "order_lines": self.lines,
            "deliveries_per_s": round(self.rate_per_s, 1),
            "topics": topics,
            "lateness_by_tier": {tier.name.lower(): asdict(self.lateness_of_tier(tier)) for tier in reversed(Tier)},
            "takings_pence": {"booked": sum(self.booked.values()), "by_the_orders": sum(self.takings.values())},
            "pictures": {
                saving.topic: {
                    "asked": saving.asked,
                    "drawn": saving.drawn,
                    "saved": saving.saved,
                    "saved_s": round(saving.saved_s, 3),
                }
                for saving in self.savings()
            },
            "contact_sheet": None if self.drawn is None else str(self.drawn.sheet),
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
    violations = f"{against:,}" if isinstance(against, int) else f"{', '.join(against[:3])} ({len(against):,})"
    return Check(name, not against, f"{broken} {violations}" if against else kept)
