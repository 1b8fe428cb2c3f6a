"""The demo's jobs: what each minute asks for, and which jobs fail."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from rmq.demo.jobs import (
    MAX_RETRIES,
    SLOWEST_PAYMENT_MIN,
    TAKINGS_OF,
    TOPICS,
    Fate,
    MissingPhotoError,
    Tier,
    UnknownOrderError,
    fail_if_fated,
    fate_of,
    payment_delay_min,
    plan,
    takings_of,
    tier_of,
)
from rmq.demo.orders import OrderLine, price_changes, read_orders
from rmq.demo.worker import Pace

NINE = datetime(2011, 12, 8, 9)


def line(invoice: str, item: str, price: str, customer: str, minute: int = 0, quantity: int = 1) -> OrderLine:
    return OrderLine(invoice, item, quantity, NINE + timedelta(minutes=minute), Decimal(price), customer)


def test_the_plan_of_the_slice_holds_every_order_once() -> None:
    lines = read_orders()
    minutes = plan(lines)
    assert [each.number for each in minutes] == sorted({each.number for each in minutes})
    assert sum(each.lines for each in minutes) == len(lines)
    assert Counter(item for each in minutes for item in each.repriced) == Counter(
        line.item for line, changed in price_changes(lines) if changed
    )
    opened = [invoice for each in minutes for invoice in each.opened]
    orders = {line.invoice for line in lines if line.is_order}
    assert len(opened) == len(orders)
    assert set(opened) == orders
    opened_at = {invoice: each.number for each in minutes for invoice in each.opened}
    paid = {invoice: each.number - opened_at[invoice] for each in minutes for invoice in each.paid}
    assert paid == {i: delay for i in opened if (delay := payment_delay_min(i)) is not None}
    assert all(1 <= delay <= SLOWEST_PAYMENT_MIN for delay in paid.values())
    assert 0.5 < len(paid) / len(opened) < 0.9


def test_a_new_price_is_drawn_for_all_who_bought_the_item_by_their_tier() -> None:
    minutes = plan(
        [
            line("1", "mug", "2.00", "ann", quantity=1_000),
            line("2", "mug", "2.00", "bob"),
            line("3", "cup", "9.00", "cyd"),
            line("4", "mug", "2.50", "", minute=3),
            line("C5", "mug", "2.00", "dee", minute=3, quantity=-1),
        ]
    )
    changed = next(each for each in minutes if each.number == 3)
    assert changed.repriced == ["mug", "mug"]
    pictures = [(each.content, each.tier) for each in changed.pictures]
    assert pictures == 2 * [("item:mug customer:ann", Tier.GOLD), ("item:mug customer:bob", Tier.BRONZE)]
    assert plan([]) == []


def test_takings_are_what_each_customer_spends_less_what_is_taken_back() -> None:
    minutes = plan(
        [
            line("1", "mug", "2.05", "ann", quantity=3),
            line("2", "cup", "0.85", "", quantity=2),
            line("C3", "mug", "2.05", "ann", minute=5, quantity=-1),
            line("4", "cup", "0.85", "", minute=9),
        ]
    )
    assert next(each.takings for each in minutes if each.lines) == [("takings:ann", 615), ("takings:guest", 170)]
    assert takings_of(minutes) == {"takings:ann": 410, "takings:guest": 255}


def test_takings_of_the_slice_are_its_amounts() -> None:
    lines = read_orders()
    takings = takings_of(plan(lines))
    assert sum(takings.values()) == 100 * sum(line.price * line.quantity for line in lines) == 8_141_778
    assert len(takings) == len({line.customer for line in lines})
    fates = Counter(map(fate_of, takings))
    assert fates[Fate.FAILS_ALWAYS] == 0 < fates[Fate.FAILS_ONCE]
    assert all(content.startswith(TAKINGS_OF) for content in takings)


def test_more_spending_never_lowers_the_tier() -> None:
    tiers = [tier_of(Decimal(pounds)).value for pounds in range(0, 2_000, 10)]
    assert tiers == sorted(tiers)
    assert set(tiers) == {tier.value for tier in Tier}
    assert min(tiers) > MAX_RETRIES


def test_each_topic_sees_failures_for_once_and_the_day_sees_some_for_good() -> None:
    minutes = plan(read_orders())
    contents = {f"item:{item}" for each in minutes for item in each.repriced}
    contents |= {picture.content for each in minutes for picture in each.pictures}
    unpaid = {f"order:{i}" for each in minutes for i in each.opened if payment_delay_min(i) is None}
    fates = Counter(map(fate_of, contents | unpaid))
    assert 0.9 < fates[Fate.FINE] / fates.total()
    assert 0.02 < fates[Fate.FAILS_ONCE] / fates.total() < 0.1
    assert 5 <= fates[Fate.FAILS_ALWAYS] <= 50
    assert Fate.FAILS_ONCE in map(fate_of, unpaid)


def first_with(fate: Fate, kind: str) -> str:
    return next(content for number in range(100_000) if fate_of(content := f"{kind}:{number}") is fate)


def test_a_fate_comes_true() -> None:
    for attempt in range(1, MAX_RETRIES + 2):
        fail_if_fated(first_with(Fate.FINE, "item"), attempt)
        with pytest.raises(MissingPhotoError):
            fail_if_fated(first_with(Fate.FAILS_ALWAYS, "item"), attempt)
        with pytest.raises(UnknownOrderError):
            fail_if_fated(first_with(Fate.FAILS_ALWAYS, "order"), attempt)
    once = first_with(Fate.FAILS_ONCE, "item")
    with pytest.raises(TimeoutError):
        fail_if_fated(once, 1)
    fail_if_fated(once, 2)


def test_the_topics_stay_apart_from_others_on_the_same_redis() -> None:
    assert all(topic.name.startswith("demo.") for topic in TOPICS)


def test_compressed_time() -> None:
    pace = Pace(minutes=700, seconds=20)
    assert pace.seconds_of(700) == 20
    assert pace.ms_of(35) == 1_000
    assert pace.ms_of(0.001) == 1
    assert pace.minute_at(pace.seconds_of(70.5)) == 70
