"""The jobs of the shop, minute by minute, and those that will fail. Pure: the same orders give the same jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from zlib import crc32

from rmq import ExponentialRetry, Merge, Sum, Topic, TopicType
from rmq.demo.orders import OrderLine, price_changes

MERGE_WINDOW_MIN = 60
"""Minutes of order time in which an item's prices merge into one picture, and a customer's takings into one sum."""

CLOSE_AFTER_MIN = 30
"""Minutes after which an unpaid order is closed."""

TAKINGS_OF = "takings:"
"""Prefix of the contents of takings; the customer's number follows."""

PAID_PERCENT = 70
SLOWEST_PAYMENT_MIN = 20

FAILS_ALWAYS_PER_MILLE = 8
FAILS_ONCE_PER_MILLE = 50

MAX_RETRIES = 3

_topic = partial(
    Topic,
    max_retries=MAX_RETRIES,
    retry=ExponentialRetry(base=timedelta(milliseconds=100), cap=timedelta(seconds=1)),
    lease=timedelta(seconds=10),
)
"""Retry settings of the topics: short delays and few retries, so that messages die within a run."""

PRICE_PICTURE = _topic("demo.price-picture", TopicType.RANGE_MERGE, slots=8)
CUSTOMER_PICTURE = _topic("demo.customer-picture", TopicType.PRIORITY, slots=4)
CLOSE_ORDER = _topic("demo.close-order", TopicType.FIXED_TIME, slots=2)
TAKINGS = _topic("demo.takings", TopicType.RANGE_MERGE, slots=4, merge=Merge(Sum()))
TOPICS = (PRICE_PICTURE, CUSTOMER_PICTURE, CLOSE_ORDER, TAKINGS)
PICTURE_TOPICS = (PRICE_PICTURE.name, CUSTOMER_PICTURE.name)


class Tier(Enum):
    """Size of a customer; the value is the priority of the customer's messages."""

    BRONZE = 1_000
    SILVER = 2_000
    GOLD = 3_000


def tier_of(spent: Decimal) -> Tier:
    """Return the tier of a customer by the pounds spent."""
    if spent >= 1_000:
        return Tier.GOLD
    return Tier.SILVER if spent >= 400 else Tier.BRONZE


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of an item with its new price, for one of the customers who bought it."""

    item: str
    customer: str
    tier: Tier

    @property
    def content(self) -> str:
        """The content of its message. Later prices of the item for the customer merge into it."""
        return f"item:{self.item} customer:{self.customer}"


def parts_of(content: str) -> tuple[str, str | None]:
    """Return item and customer of a picture's content; the customer is `None` for an item's picture."""
    item, _, customer = content.partition(" customer:")
    return item.removeprefix("item:"), customer or None


@dataclass(slots=True)
class Minute:
    """The events of one minute of order time.

    Attributes:
        number: Minutes since the first order.
        lines: Number of order lines.
        repriced: Items with a new price, once per change.
        prices: Item -> newest price in pence.
        pictures: Pictures for customers, in the order of the price changes.
        opened: New orders, which wait for payment.
        paid: Orders that are paid.
        takings: Content of the customer and amount in pence of each order line; negative for a return.
    """

    number: int
    lines: int = 0
    repriced: list[str] = field(default_factory=list[str])
    prices: dict[str, int] = field(default_factory=dict[str, int])
    pictures: list[Picture] = field(default_factory=list[Picture])
    opened: list[str] = field(default_factory=list[str])
    paid: list[str] = field(default_factory=list[str])
    takings: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])


def plan(lines: Iterable[OrderLine]) -> list[Minute]:
    """Return the minutes with events, in order of time."""
    minutes: dict[int, Minute] = {}
    spent: defaultdict[str, Decimal] = defaultdict(Decimal)
    buyers: defaultdict[str, dict[str, None]] = defaultdict(dict)
    opened: set[str] = set()
    first = None
    for line, changed in price_changes(lines):
        first = first or line.at
        now = (line.at - first) // timedelta(minutes=1)
        minute = minutes.setdefault(now, Minute(now))
        minute.lines += 1
        minute.takings.append((f"{TAKINGS_OF}{line.customer or 'guest'}", round(100 * line.price * line.quantity)))
        if line.is_order and line.customer:
            spent[line.customer] += line.price * line.quantity
            buyers[line.item][line.customer] = None
        if changed:
            minute.repriced.append(line.item)
            minute.prices[line.item] = round(100 * line.price)
            minute.pictures += [Picture(line.item, each, tier_of(spent[each])) for each in buyers[line.item]]
        if line.is_order and line.invoice not in opened:
            opened.add(line.invoice)
            minute.opened.append(line.invoice)
            delay = payment_delay_min(line.invoice)
            if delay is not None:
                minutes.setdefault(now + delay, Minute(now + delay)).paid.append(line.invoice)
    return [minutes[number] for number in sorted(minutes)]


def opening_prices(lines: Iterable[OrderLine]) -> dict[str, int]:
    """Return the first price of each item, in pence."""
    prices: dict[str, int] = {}
    for line in lines:
        if line.price > 0:
            prices.setdefault(line.item, round(100 * line.price))
    return prices


def newest_prices(lines: Iterable[OrderLine]) -> dict[str, int]:
    """Return the last price of each item, in pence, which the pictures must show in the end."""
    return {line.item: round(100 * line.price) for line in lines if line.price > 0}


def takings_of(minutes: Iterable[Minute]) -> dict[str, int]:
    """Return the sum of the day's takings by content, in pence, which the queue's sums must equal."""
    sums: defaultdict[str, int] = defaultdict(int)
    for minute in minutes:
        for content, pence in minute.takings:
            sums[content] += pence
    return dict(sums)


def payment_delay_min(invoice: str) -> int | None:
    """Return the minutes until an order is paid; `None` if it is never paid."""
    drawn = _hash(f"paid {invoice}")
    return 1 + drawn // 100 % SLOWEST_PAYMENT_MIN if drawn % 100 < PAID_PERCENT else None


class Fate(Enum):
    """Whether a job succeeds."""

    FINE = "fine"
    FAILS_ONCE = "fails once"
    FAILS_ALWAYS = "fails always"


class MissingPhotoError(Exception):
    """Raised if there is no photo of an item; retries do not help."""


class UnknownOrderError(Exception):
    """Raised if an order does not exist; retries do not help."""


def fate_of(content: str) -> Fate:
    """Return the fate of a job, the same in every run. Takings never fail permanently."""
    drawn = _hash(content) % 1_000
    if drawn < FAILS_ALWAYS_PER_MILLE and not content.startswith(TAKINGS_OF):
        return Fate.FAILS_ALWAYS
    return Fate.FAILS_ONCE if drawn < FAILS_ALWAYS_PER_MILLE + FAILS_ONCE_PER_MILLE else Fate.FINE


def fail_if_fated(content: str, attempt: int) -> None:
    """Raise the error that the content's fate prescribes; return if it succeeds.

    Args:
        content: Content of the message.
        attempt: Number of the delivery, starting with 1.

    Raises:
        TimeoutError: In the first attempt only.
        MissingPhotoError: Always, for a picture.
        UnknownOrderError: Always, for an order.
    """
    fate = fate_of(content)
    if fate is Fate.FAILS_ALWAYS:
        if content.startswith("order:"):
            raise UnknownOrderError(f"{content} does not exist")
        raise MissingPhotoError(f"no photo for {content}")
    if fate is Fate.FAILS_ONCE and attempt == 1:
        raise TimeoutError("the photo server did not answer in time")


def _hash(text: str) -> int:
    return crc32(text.encode())
