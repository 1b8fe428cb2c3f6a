"""Checks of the pictures: one per delivery, none with an old price, larger customers first. Pure."""

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
