"""What came of the pictures: as many as deliveries, none with an old price, larger customers first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from rmq.demo.handled import Handled
from rmq.demo.jobs import CUSTOMER_PICTURE, PRICE_PICTURE, Tier, parts_of

PICTURE_TOPICS = (PRICE_PICTURE.name, CUSTOMER_PICTURE.name)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is in the folder of the pictures when the run has ended.

    Attributes:
        folder: The folder.
        sheet: The contact sheet.
        prices: Content and price in pence of each picture, as its file has them.
        newest: The newest price of each item, in pence.
        asked: How many prices asked for each content's picture.
        names: What the items are called.
    """

    folder: Path
    sheet: Path
    prices: Mapping[str, int]
    newest: Mapping[str, int]
    asked: Mapping[str, int]
    names: Mapping[str, str]

    def old(self) -> list[str]:
        """Return the contents whose picture shows another price than the newest."""
        return [content for content, pence in self.prices.items() if pence != self.newest.get(parts_of(content)[0])]

    def most_asked(self, records: Iterable[Handled], limit: int, tier: Tier | None = None) -> list[str]:
        """Return the contents whose pictures were asked for most, of those that were drawn last for a tier."""
        tiers = {record.content: record.tier for record in records if record.done}
        tier_name = None if tier is None else tier.name
        mine = [each for each in self.prices if each in tiers and tiers[each] == tier_name]
        return sorted(mine, key=lambda each: (-self.asked.get(each, 0), each))[:limit]


@dataclass(frozen=True, slots=True)
class Saving:
    """What merging saved in a topic of pictures.

    Attributes:
        topic: Topic name.
        asked: How many pictures were asked for.
        drawn: How many were drawn.
        saved: How many were not: a picture that waited already took the newer price.
        render_ms: How long one takes, in the mean.
    """

    topic: str
    asked: int
    drawn: int
    saved: int
    render_ms: float

    @property
    def saved_s(self) -> float:
        """How many seconds of a renderer were saved."""
        return self.saved * self.render_ms / 1_000


def saving(topic: str, asked: int, merged: int, records: Iterable[Handled]) -> Saving:
    """Return what merging saved in a topic.

    Args:
        topic: Topic name.
        asked: Its accepted messages.
        merged: How many of them merged.
        records: What was handled.
    """
    spans_s = [each.ended_s - each.started_s for each in records if each.topic == topic and each.pictured]
    return Saving(topic, asked, len(spans_s), merged, 1_000 * sum(spans_s) / len(spans_s) if spans_s else 0.0)


def renders(records: Iterable[Handled], topic: str) -> int:
    """Return how many pictures of a topic were drawn."""
    return sum(each.pictured for each in records if each.topic == topic)


def claims_by_tier(records: Iterable[Handled]) -> Iterator[list[Tier]]:
    """Yield, for each claim with customers' pictures of several tiers, the tiers in the order in which they began.

    Only first deliveries count: a retry stands behind every priority.
    """
    first = [each for each in records if each.topic == CUSTOMER_PICTURE.name and each.attempt == 1 and each.tier]
    for _, group in groupby(sorted(first, key=lambda each: (each.claim, each.started_s)), key=lambda each: each.claim):
        tiers = [Tier[each.tier] for each in group if each.tier]
        if len(set(tiers)) > 1:
            yield tiers


def out_of_turn(claims: Iterable[Sequence[Tier]]) -> int:
    """Return in how many claims a smaller customer's picture began before a larger one's."""
    return sum(any(a.value < b.value for a, b in pairwise(tiers)) for tiers in claims)
