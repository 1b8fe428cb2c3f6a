"""What the shop asks for, minute by minute, and which jobs will fail. Pure: the same orders give the same jobs."""

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
"""An item's new prices of so many minutes of order time end up in one picture, a customer's takings in one sum."""

CLOSE_AFTER_MIN = 30
"""An order that is not paid after so many minutes is closed."""

TAKINGS_OF = "takings:"
"""Before a customer's number: the content of what the customer spends."""

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
"""Short waits, few retries: a message has to die within a run."""

PRICE_PICTURE = _topic("demo.price-picture", TopicType.RANGE_MERGE, slots=8)
CUSTOMER_PICTURE = _topic("demo.customer-picture", TopicType.PRIORITY, slots=4)
CLOSE_ORDER = _topic("demo.close-order", TopicType.FIXED_TIME, slots=2)
TAKINGS = _topic("demo.takings", TopicType.RANGE_MERGE, slots=4, merge=Merge(Sum()))
TOPICS = (PRICE_PICTURE, CUSTOMER_PICTURE, CLOSE_ORDER, TAKINGS)


class Tier(Enum):
    """How large a customer is; the value is the priority of the customer's messages."""

    BRONZE = 1_000
    SILVER = 2_000
    GOLD = 3_000


def tier_of(spent: Decimal) -> Tier:
    """Return the tier of a customer who has spent so many pounds."""
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
        """The content of its message: a later price of the same item for the same customer merges into it."""
        return f"item:{self.item} customer:{self.customer}"


def parts_of(content: str) -> tuple[str, str | None]:
    """Return item and customer of a picture's content; `None` for the customer of an item's own picture."""
    item, _, customer = content.partition(" customer:")
    return item.removeprefix("item:"), customer or None


@dataclass(slots=True)
class Minute:
    """What happens in one minute of order time.

    Attributes:
        number: Minutes since the first order.
        lines: How many order lines it has.
        repriced: Items with a new price, once for each change.
        prices: The newest price of each of them, in pence.
        pictures: Pictures for customers, in the order of the price changes.
        opened: Orders that wait for their payment from now on.
        paid: Orders that are paid.
        takings: Per order line the content of its customer, and its amount in pence: negative where it is taken back.
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
    """Return the minutes in which something happens, by time; none for no orders."""
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
    """Return the first price of each item, in pence: the price list in the morning."""
    prices: dict[str, int] = {}
    for line in lines:
        if line.price > 0:
            prices.setdefault(line.item, round(100 * line.price))
    return prices


def newest_prices(lines: Iterable[OrderLine]) -> dict[str, int]:
    """Return the last price of each item, in pence: what each picture has to show in the evening."""
    return {line.item: round(100 * line.price) for line in lines if line.price > 0}


def takings_of(minutes: Iterable[Minute]) -> dict[str, int]:
    """Return what all takings of the day come to, in pence: what the queue's sums have to be."""
    sums: defaultdict[str, int] = defaultdict(int)
    for minute in minutes:
        for content, pence in minute.takings:
            sums[content] += pence
    return dict(sums)


def payment_delay_min(invoice: str) -> int | None:
    """Return after how many minutes an order is paid; `None` if it never is."""
    drawn = _hash(f"paid {invoice}")
    return 1 + drawn // 100 % SLOWEST_PAYMENT_MIN if drawn % 100 < PAID_PERCENT else None


class Fate(Enum):
    """How a job goes."""

    FINE = "fine"
    FAILS_ONCE = "fails once"
    FAILS_ALWAYS = "fails always"


class MissingPhotoError(Exception):
    """There is nothing to draw the price on: no retry will help."""


class UnknownOrderError(Exception):
    """An order that the books do not know: no retry will help."""


def fate_of(content: str) -> Fate:
    """Return how the job with this content goes, the same on every run; no takings fail for good."""
    drawn = _hash(content) % 1_000
    if drawn < FAILS_ALWAYS_PER_MILLE and not content.startswith(TAKINGS_OF):
        return Fate.FAILS_ALWAYS
    return Fate.FAILS_ONCE if drawn < FAILS_ALWAYS_PER_MILLE + FAILS_ONCE_PER_MILLE else Fate.FINE


def fail_if_fated(content: str, attempt: int) -> None:
    """Fail as the content's fate has it.

    Args:
        content: Content of the message.
        attempt: Number of the delivery, 1 for the first.

    Raises:
        TimeoutError: For once.
        MissingPhotoError: Always, for a picture.
        UnknownOrderError: Always, for an order.
    """
    fate = fate_of(content)
    if fate is Fate.FAILS_ALWAYS:
        if content.startswith("order:"):
            raise UnknownOrderError(f"the books have no {content}")
        raise MissingPhotoError(f"no photo for {content}")
    if fate is Fate.FAILS_ONCE and attempt == 1:
        raise TimeoutError("the photo server did not answer in time")


def _hash(text: str) -> int:
    return crc32(text.encode())
