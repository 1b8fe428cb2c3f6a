"""Summary of a demo run: Redis' figures, the workers' records, and the checks. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from rmq import DeadMessage, TopicStats
from rmq.demo.jobs import CUSTOMER_PICTURE, PICTURE_TOPICS, TAKINGS, Tier, parts_of


@dataclass(frozen=True, slots=True)
class Handled:
    """The record of one handler run.

    Attributes:
        topic: Topic name.
        content: The content as text.
        done: True if the handler ended without an error.
        started_s: Start time by `time.monotonic`, which all processes of a machine share.
        ended_s: End time by the same clock.
        late_ms: Time from due time to start, by Redis' clock; `None` for a retry.
        early: True if the message was claimed before its due time.
        tier: Tier of the customer, for customers' pictures.
        pence: Amount, for takings.
        first_sent_ms: Time of the first of its sends, for takings; the same for a redelivery.
        attempt: Number of the delivery, starting with 1.
        claim: Slot and stamp of its claim.
        price: The price drawn, in pence; `None` without a picture.
    """

    topic: str
    content: str
    done: bool
    started_s: float
    ended_s: float
    late_ms: int | None
    early: bool
    tier: str | None
    pence: int | None = None
    first_sent_ms: int | None = None
    attempt: int = 1
    claim: str = ""
    price: int | None = None

    @property
    def pictured(self) -> bool:
        """True if the handler drew a picture without an error."""
        return self.done and self.price is not None

    def to_json(self) -> str:
        """Encode the record as one line of JSON."""
        return json.dumps(astuple(self))

    @classmethod
    def from_json(cls, line: str) -> Handled:
        """Decode a record."""
        return cls(*json.loads(line))


@dataclass(frozen=True, slots=True)
class Drawn:
    """The pictures in the folder at the end of a run.

    Attributes:
        folder: The folder.
        sheet: The contact sheet.
        prices: Content -> price in pence of each picture, from its file.
        newest: Item -> newest price in pence.
        asked: Content -> number of price changes.
        names: Item -> name.
    """

    folder: Path
    sheet: Path
    prices: Mapping[str, int]
    newest: Mapping[str, int]
    asked: Mapping[str, int]
    names: Mapping[str, str]

    def old(self) -> list[str]:
        """Return the contents whose picture does not show the newest price."""
        return [content for content, pence in self.prices.items() if pence != self.newest.get(parts_of(content)[0])]

    def most_asked(self, records: Iterable[Handled], limit: int, tier: Tier | None = None) -> list[str]:
        """Return the contents with the most price changes, of those last drawn for a tier."""
        tiers = {record.content: record.tier for record in records if record.done}
        tier_name = None if tier is None else tier.name
        mine = [each for each in self.prices if each in tiers and tiers[each] == tier_name]
        return sorted(mine, key=lambda each: (-self.asked.get(each, 0), each))[:limit]


@dataclass(frozen=True, slots=True)
class Saving:
    """The work that merging saved in a topic of pictures.

    Attributes:
        topic: Topic name.
        asked: Number of requested pictures.
        drawn: Number of drawn pictures.
        saved: Number of merged requests: a waiting picture took the newer price.
        render_ms: Mean time to draw one.
    """

    topic: str
    asked: int
    drawn: int
    saved: int
    render_ms: float

    @property
    def saved_s(self) -> float:
        """Saved time of a renderer, in seconds."""
        return self.saved * self.render_ms / 1_000


def saving(topic: str, asked: int, merged: int, records: Iterable[Handled]) -> Saving:
    """Return the work that merging saved in a topic.

    Args:
        topic: Topic name.
        asked: Number of its accepted messages.
        merged: Number of them that merged.
        records: Records of the workers.
    """
    spans_s = [each.ended_s - each.started_s for each in records if each.topic == topic and each.pictured]
    return Saving(topic, asked, len(spans_s), merged, 1_000 * sum(spans_s) / len(spans_s) if spans_s else 0.0)


def renders(records: Iterable[Handled], topic: str) -> int:
    """Return the number of pictures drawn for a topic."""
    return sum(each.pictured for each in records if each.topic == topic)


def claims_by_tier(records: Iterable[Handled]) -> Iterator[list[Tier]]:
    """Yield the tiers of customers' pictures in handling order, for each claim with several tiers.

    Only first deliveries count: retries come after all priorities.
    """
    first = [each for each in records if each.topic == CUSTOMER_PICTURE.name and each.attempt == 1 and each.tier]
    for _, group in groupby(sorted(first, key=lambda each: (each.claim, each.started_s)), key=lambda each: each.claim):
        tiers = [Tier[each.tier] for each in group if each.tier]
        if len(set(tiers)) > 1:
            yield tiers


def out_of_turn(claims: Iterable[Sequence[Tier]]) -> int:
    """Return the number of claims in which a smaller customer's picture started before a larger one's."""
    return sum(any(a.value < b.value for a, b in pairwise(tiers)) for tiers in claims)


@dataclass(frozen=True, slots=True)
class Account:
    """Redis' counts of a topic's messages and their outcomes since the demo began.

    `backlog`, `due`, `in_flight` and `waiting` are present numbers; `found` is the number of messages left by an
    earlier run.
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
        """Return the account of the time between two readings of the figures."""
        names = ("accepted", "merged", "delivered", "retried", "acked", "cancelled", "purged", "trimmed")
        grown = {name: now.total(name) - before.total(name) for name in names}
        # dead messages that were removed meanwhile died as well
        dead = now.dead - before.dead + grown.pop("purged") + grown.pop("trimmed")
        found = before.backlog + before.in_flight + before.waiting
        present = {"backlog": now.backlog, "due": now.due_now, "in_flight": now.in_flight, "waiting": now.waiting}
        return cls(now.topic.name, **grown, dead=dead, **present, found=found)

    @property
    def left(self) -> int:
        """Number of messages in the backlog, in flight or waiting for a retry."""
        return self.backlog + self.in_flight + self.waiting

    @property
    def missing(self) -> int:
        """Number of missing messages, always 0: accepted - merged = acked + dead + cancelled + left."""
        return self.found + self.accepted - self.merged - self.acked - self.dead - self.cancelled - self.left


def total(accounts: Iterable[Account]) -> Account:
    """Return the sum of one or more accounts."""
    rows = [astuple(account)[1:] for account in accounts]
    return Account("all", *map(sum, zip(*rows, strict=True)))


def overlaps(records: Iterable[Handled]) -> int:
    """Return the number of handler runs that started while another handler had the same content."""
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
    """Return topic and content of messages that were not handled after their last send.

    Args:
        last_sent_s: Topic and content -> start of the last send, by the records' clock.
        records: Records of the workers.
        dead: Topic and content of dead messages, which are exempt.
    """
    last_done_s: dict[tuple[str, str], float] = {}
    for record in records:
        if record.done:
            key = (record.topic, record.content)
            last_done_s[key] = max(record.started_s, last_done_s.get(key, 0.0))
    return [key for key, sent_s in last_sent_s.items() if key not in dead and last_done_s.get(key, 0.0) < sent_s]


def booked(records: Iterable[Handled]) -> dict[str, int]:
    """Return the booked takings by content, in pence.

    A redelivery after a booking has the same time of its first send, and replaces the booking.
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
    """Lateness of deliveries: number of measurements, two percentiles, and the mean."""

    count: int
    p50_ms: int
    p99_ms: int
    mean_ms: int


def spread(late_ms: Iterable[int | None]) -> Spread:
    """Return the spread of measurements; all 0 without measurements."""
    known = sorted(each for each in late_ms if each is not None)
    if not known:
        return Spread(0, 0, 0, 0)
    p50_ms, p99_ms = (known[len(known) * percent // 100] for percent in (50, 99))
    return Spread(len(known), p50_ms, p99_ms, round(sum(known) / len(known)))


@dataclass(frozen=True, slots=True)
class Check:
    """A check, and whether the run passed it."""

    name: str
    kept: bool
    words: str


@dataclass(frozen=True, slots=True)
class Run:
    """The results of a run.

    Attributes:
        seconds: Planned duration in seconds.
        elapsed_s: Seconds from the first send until no message was left.
        lines: Number of order lines replayed.
        accounts: Redis' counts per topic.
        records: Records of the workers.
        last_sent_s: Topic and content -> time of the last send.
        dead: Dead messages.
        takings: Takings by content according to the orders, in pence.
        drawn: The pictures; `None` for a run without pictures.
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
        """Return the lateness of a topic's first deliveries."""
        return spread(record.late_ms for record in self.records if record.topic == topic)

    def lateness_of_tier(self, tier: Tier) -> Spread:
        """Return the waiting times of the pictures for customers of a tier."""
        mine = [each for each in self.records if each.topic == CUSTOMER_PICTURE.name and each.tier == tier.name]
        return spread(record.late_ms for record in mine)

    @property
    def booked(self) -> dict[str, int]:
        """Booked takings by content, in pence."""
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
            _check("empty", "no messages in the backlog, in flight or waiting for a retry", left, "messages left:"),
            _check("no overlap", "no content was handled twice at once", doubled, "handled twice at once:"),
            _check("not early", "no message was delivered before its due time", early, "delivered early:"),
            _check(
                "up to date",
                "all messages were handled after their last send, or died",
                old,
                "not handled since their last send:",
            ),
            self._sums(),
            self._tiers(),
            *self._pictures(),
        ]

    def _sums(self) -> Check:
        if any(account.found for account in self.accounts if account.topic == TAKINGS.name):
            return Check("sums", True, "not compared: an earlier run has left takings")
        sums = self.booked
        differ = [each for each in sorted({*sums, *self.takings}) if sums.get(each) != self.takings.get(each)]
        return _check("sums", "each customer's takings equal those of the orders", differ, "differing sums:")

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
        """Return the work that merging saved, per topic of pictures; empty for a run without pictures."""
        if self.drawn is None:
            return []
        mine = [account for account in self.accounts if account.topic in PICTURE_TOPICS]
        return [saving(each.topic, each.accepted, each.merged, self.records) for each in mine]

    @property
    def exit_code(self) -> int:
        """0 if all checks passed, else 1."""
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
    """Return a check that passes if `against` is 0 or empty."""
    violations = f"{against:,}" if isinstance(against, int) else f"{', '.join(against[:3])} ({len(against):,})"
    return Check(name, not against, f"{broken} {violations}" if against else kept)
