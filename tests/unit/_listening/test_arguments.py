"""Handlers get what their annotations ask for; what nobody can give them is refused when they are decorated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from types import SimpleNamespace
from typing import Annotated, Any, Protocol, TypeVar

import pytest
from fast_depends import Depends

from rmq import Collect, DeliveryColumns, InvalidValueError, Listener, Merge, Topic, TopicType, aio
from rmq import Delivery as PlainDelivery
from rmq._listening.arguments import with_arguments


@dataclass
class Thing:
    name: str


@dataclass
class Price(Thing):
    pence: int = 0


Delivery = PlainDelivery
T = TypeVar("T")
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


def maybe(delivery: Delivery | None) -> None: ...
def either(deliveries: list[Delivery] | tuple[Delivery, ...]) -> None: ...
def any_iterable(deliveries: Iterable[Delivery]) -> None: ...
def of_a_protocol(delivery: HasText) -> None: ...
def of_a_type_variable(delivery: T) -> T: ...  # pyright: ignore
def unread(delivery: Nowhere) -> None: ...  # noqa: F821  # pyright: ignore
def two(connection: str, delivery: Delivery) -> None: ...


class HasText(Protocol):
    text: str


class Doer:
    def __call__(self, delivery: Delivery) -> None: ...
    def method(self, delivery: Delivery) -> None: ...


def pass_all(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return call


def add_connection(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(delivery: Any) -> Any:
        return function("database", delivery)

    return call


with_connection, passes_all_on, timed = add_connection(two), pass_all(plain), pass_all(add_connection(two))


@pytest.mark.parametrize(
    ("topic", "handler", "batch", "in_columns"),
    [
        (TYPED, plain, False, False),
        (TYPED, bare, False, False),
        (TYPED, bare, True, False),
        (TYPED, many, True, False),
        (TYPED, columns, True, True),
        (TYPED, print, False, False),
        (PLAIN, plain, False, False),
        (PLAIN, bare, True, False),
        (PLAIN, many, True, False),
        (PLAIN, columns, True, True),
        (PLAIN, print, False, False),
        (PLAIN, lambda *args: None, False, False),
        (PLAIN, lambda delivery, more=5: None, False, False),
        (PLAIN, maybe, False, False),
        (PLAIN, either, True, False),
        (PLAIN, any_iterable, True, False),
        (PLAIN, of_a_protocol, False, False),
        (PLAIN, of_a_type_variable, False, False),
        (PLAIN, unread, False, False),
        (PLAIN, with_connection, False, False),
        (PLAIN, passes_all_on, False, False),
        (PLAIN, timed, False, False),
        (PLAIN, Doer().method, False, False),
        (PLAIN, Doer(), False, False),
        (PLAIN, partial(two, "database"), False, False),
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
def nothing() -> None: ...
def options(**options: Any) -> None: ...
def as_dict(order: dict[str, Any], delivery: Delivery) -> None: ...
def bare_two(delivery, more) -> None: ...  # pyright: ignore
def only_keyword(*, delivery) -> None: ...  # pyright: ignore
def late(limit: int = 5) -> None: ...
def twice(content, delivery: Delivery) -> None: ...  # pyright: ignore


@pytest.mark.parametrize(
    ("topic", "handler", "batch", "rule"),
    [
        (
            TYPED,
            wrong,
            False,
            "parameter order of handler 'wrong' is annotated with int; on topic price annotate it with Price",
        ),
        (TYPED, unknown, False, "parameter more of handler 'unknown' is annotated with str"),
        (TYPED, second, False, "parameter more of handler 'second' has no annotation"),
        (TYPED, payload, True, "annotate it with list[Price] or list[Delivery], or give it a default Depends"),
        (TYPED, plain, True, "annotated with Delivery; on topic price annotate it with list[Price] or list[Delivery]"),
        (TYPED, payloads, False, "annotated with list[tests.unit._listening.test_arguments.Price]"),
        (COLLECTS, payload, False, "annotate it with list[Price] or Delivery, or give it a default Depends"),
        (TYPED, nowhere, False, "cannot be read: name 'Nowhere' is not defined"),
        (TYPED, positional, False, "must not be positional-only"),
        (
            TYPED,
            nothing,
            False,
            "handler 'nothing' takes no argument; on topic price it is called with one argument: Delivery",
        ),
        (TYPED, late, False, "handler 'late' has no parameter for the message, only limit"),
        (TYPED, twice, False, "parameters content, delivery of handler 'twice' would all get the same argument"),
        (PLAIN, nothing, False, "handler 'nothing' takes no argument; on topic plain it is called with one argument"),
        (PLAIN, nothing, True, "it is called with one argument: list[Delivery]"),
        (PLAIN, options, False, "handler 'options' takes no argument"),
        (
            PLAIN,
            as_dict,
            False,
            "parameter order of handler 'as_dict' is annotated with dict[str, typing.Any]; on topic "
            "plain annotate it with Delivery, or give it a default Depends(...) of fast_depends; for a payload, set "
            "Topic(..., payload=...)",
        ),
        (PLAIN, two, False, "parameter connection of handler 'two' is annotated with str"),
        (PLAIN, bare_two, False, "parameter more of handler 'bare_two' has no annotation"),
        (PLAIN, only_keyword, False, "parameter delivery of handler 'only_keyword' has no annotation"),
        (PLAIN, late, False, "handler 'late' has no parameter for the message, only limit"),
        (PLAIN, twice, False, "on topic plain remove all but one"),
        (
            PLAIN,
            plain,
            True,
            "annotated with Delivery; on topic plain annotate it with list[Delivery], or give it a default Depends",
        ),
        (PLAIN, many, False, "annotated with list[rmq"),
        (PLAIN, pass_all(nothing), False, "takes no argument"),
        (PLAIN, partial(bare, None), False, "takes no argument"),
        (PLAIN, Doer.method, False, "parameters self, delivery of handler 'method' would all get the same argument"),
    ],
)
def test_what_nobody_can_give_is_refused_at_once(
    topic: Topic, handler: Callable[..., Any], batch: bool, rule: str
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        Listener(topic, handler, batch=10 if batch else None)
    assert rule in str(caught.value)


def test_a_handler_of_columns_is_told_what_it_gets() -> None:
    for topic in (PLAIN, TYPED):
        with pytest.raises(InvalidValueError, match="annotate it with DeliveryColumns, or give it a default Depends"):
            Listener(topic, plain, batch=10, columns=True)
