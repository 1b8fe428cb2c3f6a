"""Handlers get what their annotations ask for; what nobody can give them is refused when they are decorated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from fast_depends import Depends

from rmq import Collect, DeliveryColumns, InvalidValueError, Merge, Topic, TopicType, aio
from rmq import Delivery as PlainDelivery
from rmq._listening.arguments import with_arguments
from rmq._listening.listener import Listener


@dataclass
class Thing:
    name: str


@dataclass
class Price(Thing):
    pence: int = 0


Delivery = PlainDelivery
MUG, CUP = Price("mug"), Price("cup")
GIVEN: Any = SimpleNamespace(decoded=MUG)
BATCH: Any = [GIVEN, SimpleNamespace(decoded=CUP)]
TYPED = Topic("price", TopicType.RANGE_MERGE, payload=Price)
COLLECTS = Topic("price", TopicType.RANGE_MERGE, payload=Price, merge=Merge(Collect()))
PLAIN = Topic("plain", TopicType.RANGE_MERGE)


def opened() -> str:
    return "database"


def payload(price: Price) -> Any:
    return price


def base(thing: Thing) -> Any:
    return thing


def both(price: Price, delivery: Delivery[Price]) -> Any:
    return price, delivery


def turned(delivery: aio.Delivery, price: Price) -> Any:
    return price, delivery


def default(price: Price, more: int = 5) -> Any:
    return price, more


def keyword(*, price: Price, **more: int) -> Any:
    return price, more


def noted(price: Annotated[Price, "newest"], db: Annotated[str, Depends(opened)]) -> Any:
    return price, db


def depends(price: Price, delivery: Delivery, db: str = Depends(opened)) -> Any:
    return price, delivery, db


def unmarked(delivery, price: Price) -> Any:  # pyright: ignore
    return price, delivery  # pyright: ignore


class Called:
    def __call__(self, price: Price) -> Any:
        return price

    def method(self, price: Price) -> Any:
        return price


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (payload, MUG),
        (base, MUG),
        (both, (MUG, GIVEN)),
        (turned, (MUG, GIVEN)),
        (default, (MUG, 5)),
        (keyword, (MUG, {})),
        (noted, (MUG, "database")),
        (depends, (MUG, GIVEN, "database")),
        (unmarked, (MUG, GIVEN)),
        (Called(), MUG),
        (Called().method, MUG),
        (partial(default, more=7), (MUG, 7)),
    ],
)
def test_a_handler_gets_what_it_asks_for(handler: Callable[..., Any], expected: object) -> None:
    assert with_arguments(TYPED, handler, False)(GIVEN) == expected


def payloads(prices: list[Price]) -> Any:
    return prices


def sequence(prices: Sequence[Price], deliveries: list[Delivery]) -> Any:
    return prices, deliveries


@pytest.mark.parametrize(("handler", "expected"), [(payloads, [MUG, CUP]), (sequence, ([MUG, CUP], BATCH))])
def test_a_batch_handler_gets_lists(handler: Callable[..., Any], expected: object) -> None:
    assert with_arguments(TYPED, handler, True)(BATCH) == expected


def test_a_topic_that_collects_gives_all_payloads_of_a_delivery() -> None:
    assert with_arguments(COLLECTS, payloads, False)(SimpleNamespace(decoded=[MUG, CUP])) == [MUG, CUP]


def test_dependencies_are_had_without_payloads_too() -> None:
    def handler(delivery: Delivery, db: str = Depends(opened)) -> Any:
        return delivery, db

    assert with_arguments(PLAIN, handler, False)(GIVEN) == (GIVEN, "database")


def test_a_class_within_a_function_is_found_by_its_name() -> None:
    @dataclass
    class Inner:
        name: str

    def handler(inner: Inner) -> Any:
        return inner

    topic = Topic("inner", TopicType.STREAM, payload=Inner)
    assert with_arguments(topic, handler, False)(SimpleNamespace(decoded=5)) == 5


def plain(delivery: Delivery) -> None: ...
def bare(delivery) -> None: ...  # pyright: ignore
def columns(batch: DeliveryColumns) -> None: ...
def many(batch: list[Delivery]) -> None: ...


@pytest.mark.parametrize(
    ("topic", "handler", "batch", "in_columns"),
    [
        (TYPED, plain, False, False),
        (TYPED, bare, False, False),
        (TYPED, bare, True, False),
        (TYPED, many, True, False),
        (TYPED, columns, True, True),
        (TYPED, print, False, False),
        (PLAIN, both, False, False),
        (PLAIN, lambda unknown, more: None, False, False),
    ],
)
def test_a_handler_that_takes_what_is_given_is_called_as_it_is(
    topic: Topic, handler: Callable[..., Any], batch: bool, in_columns: bool
) -> None:
    assert with_arguments(topic, handler, batch, in_columns) is handler


def wrong(order: int) -> None: ...
def unknown(price: Price, more: str) -> None: ...
def second(price: Price, more) -> None: ...  # pyright: ignore
def nowhere(price: Nowhere) -> None: ...  # noqa: F821  # pyright: ignore
def positional(price: Price, delivery: Delivery, /) -> None: ...


@pytest.mark.parametrize(
    ("topic", "handler", "batch", "rule"),
    [
        (
            TYPED,
            wrong,
            False,
            "parameter order of handler 'wrong' is annotated with int; on topic price it may be Price",
        ),
        (TYPED, unknown, False, "parameter more of handler 'unknown' is annotated with str"),
        (TYPED, second, False, "parameter more of handler 'second' is annotated with nothing"),
        (TYPED, payload, True, "it may be list[Price], list[Delivery] or a dependency"),
        (TYPED, plain, True, "annotated with Delivery; on topic price it may be list[Price], list[Delivery]"),
        (TYPED, payloads, False, "annotated with list[tests.unit._listening.test_arguments.Price]"),
        (COLLECTS, payload, False, "it may be list[Price], Delivery or a dependency"),
        (TYPED, nowhere, False, "cannot be read: name 'Nowhere' is not defined"),
        (TYPED, positional, False, "must not be positional-only"),
    ],
)
def test_what_nobody_can_give_is_refused_at_once(
    topic: Topic, handler: Callable[..., Any], batch: bool, rule: str
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        Listener(topic, handler, batch=10 if batch else None)
    assert rule in str(caught.value)
