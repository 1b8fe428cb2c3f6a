"""Typed payloads from send to handler, on both sides; what does not decode is dead at once and can be replayed."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from fast_depends import Depends

from rmq import (
    PER_MESSAGE,
    Collect,
    DeadFilter,
    Delivery,
    DeliveryColumns,
    ImmediateRetry,
    JsonCodec,
    Merge,
    MsgpackCodec,
    Newest,
    PayloadError,
    RangeMergeMessage,
    RmqClient,
    StreamDelivery,
    StreamMessage,
    Topic,
    TopicType,
    ZstdCodec,
    aio,
)
from tests.conftest import MakeTopic
from tests.support.clients import run_until, stats_of


@dataclass(frozen=True)
class Price:
    item: str
    pence: int


class OtherPrice(msgspec.Struct, frozen=True):
    item: str
    pence: float


MUG, CUP = Price("mug", 5), Price("cup", 7)
BAD = RangeMergeMessage("bad", time_range_ms=1, body=b'{"item":"bad"}')


@pytest.fixture
def price(make_topic: MakeTopic) -> Topic[Price]:
    return typed(make_topic(TopicType.RANGE_MERGE, retry=ImmediateRetry()))


def typed(topic: Topic, **more: Any) -> Topic[Price]:
    return replace(topic, payload=Price, **more)


def listen(
    client: RmqClient, topic: Topic, handler: Callable[..., Any], until: Callable[[], bool], **options: Any
) -> None:
    """Run a handler on the threads' side until something is so."""
    client.listener(topic, **options)(handler)
    run_until(client, until)


def listen_async(
    url: str, topic: Topic, handler: Callable[..., Any], until: Callable[[], bool], **options: Any
) -> None:
    """Run an async handler until something is so."""

    async def run() -> None:
        async with aio.RmqClient(url) as client:
            client.listener(topic, **options)(handler)
            await client.start()
            while not until():
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_handler_gets_payload_and_delivery(client: RmqClient, price: Topic[Price]) -> None:
    got: list[tuple[Price, bytes, int]] = []

    def draw(price: Price, delivery: Delivery[Price]) -> None:
        got.append((price, delivery.content, delivery.attempt))

    client.producer(price).send(price.message("k", MUG, time_range_ms=1))
    listen(client, price, draw, lambda: bool(got))
    assert got == [(MUG, b"k", 1)]


def test_an_async_handler_gets_payload_delivery_and_dependency(
    client: RmqClient, price: Topic[Price], redis_url: str
) -> None:
    got: list[Any] = []

    async def opened() -> str:
        return "database"

    async def draw(price: Price, delivery: aio.Delivery[Price], db: str = Depends(opened)) -> None:
        assert delivery.payload is price
        await delivery.ack()
        got.append((price, db))

    client.producer(price).send(price.message("k", MUG, time_range_ms=1))
    listen_async(redis_url, price, draw, lambda: bool(got))
    assert got == [(MUG, "database")]
    assert stats_of(client, price).total("acked") == 1


@pytest.mark.parametrize("batch", [None, 10])
def test_a_payload_lives_as_long_as_its_handler_runs(client: RmqClient, price: Topic[Price], batch: int | None) -> None:
    """Payloads that lived until their claim was settled made the garbage collector cost as much as RMQ itself."""
    seen: list[tuple[Delivery[Price], weakref.ref[Price]]] = []
    alive: list[bool] = []

    def draw(delivery: Delivery[Price]) -> None:
        alive.append(any(each() is not None for _, each in seen))
        seen.append((delivery, weakref.ref(delivery.payload)))

    def draw_all(deliveries: list[Delivery[Price]]) -> None:
        alive.append(any(each() is not None for _, each in seen))
        seen.extend((delivery, weakref.ref(delivery.payload)) for delivery in deliveries)

    client.producer(price).send_many(price.message(f"item:{n}", Price("mug", n), time_range_ms=1) for n in range(30))
    listen(client, price, draw if batch is None else draw_all, lambda: len(seen) == 30, batch=batch)
    assert len(alive) >= 3
    assert not any(alive)
    assert sorted(delivery.payload.pence for delivery, _ in seen) == list(range(30)), "decoded again for whom asks"


def check_dead_at_once(client: RmqClient, price: Topic[Price], got: list[Price]) -> None:
    """What does not decode has died at its first delivery, with its bytes and a reason; the others were handled."""
    assert sorted(got, key=lambda each: each.item) == [CUP, MUG]
    (dead,) = client.dead(price).list()
    assert (dead.content, dead.body, dead.attempts) == (b"bad", BAD.body, 1)
    assert dead.error_type == "PayloadError"
    assert dead.error_message == "the body cannot be decoded as Price: Object missing required field `pence`"


def send_three(client: RmqClient, price: Topic[Price]) -> None:
    messages = (price.message("mug", MUG, time_range_ms=1), BAD, price.message("cup", CUP, time_range_ms=1))
    client.producer(price).send_many(messages)


def settled(client: RmqClient, price: Topic[Price]) -> Callable[[], bool]:
    return lambda: (stats_of(client, price).total("acked"), stats_of(client, price).dead) == (2, 1)


def test_what_does_not_decode_is_dead_at_once(client: RmqClient, price: Topic[Price]) -> None:
    got: list[Price] = []

    def draw(price: Price) -> None:
        got.append(price)

    send_three(client, price)
    listen(client, price, draw, settled(client, price))
    check_dead_at_once(client, price, got)


@pytest.mark.parametrize("asks_for", ["payloads", "deliveries", "nothing"])
def test_a_batch_without_what_does_not_decode(client: RmqClient, price: Topic[Price], asks_for: str) -> None:
    got: list[Price] = []

    def payloads(prices: list[Price]) -> None:
        got.extend(prices)

    def deliveries(batch: list[Delivery[Price]]) -> None:
        got.extend(each.payload for each in batch)

    handler = {"payloads": payloads, "deliveries": deliveries, "nothing": lambda batch: deliveries(batch)}[asks_for]
    send_three(client, price)
    listen(client, price, handler, settled(client, price), batch=10)
    check_dead_at_once(client, price, got)


def test_an_async_batch_without_what_does_not_decode(client: RmqClient, price: Topic[Price], redis_url: str) -> None:
    got: list[Price] = []

    async def draw(prices: list[Price]) -> None:
        got.extend(prices)

    send_three(client, price)
    listen_async(redis_url, price, draw, lambda: len(got) == 2, batch=10)
    assert settled(client, price)()
    check_dead_at_once(client, price, got)


class BreakingCodec:
    """Reads JSON, and fails for a reason that is not the body's where the body says so."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def encoder(self, kind: type) -> Callable[[Any], bytes]:
        return JsonCodec().encoder(kind)

    def decoder(self, kind: type) -> Callable[[bytes], Any]:
        decode = JsonCodec().decoder(kind)

        def read(body: bytes) -> Any:
            if b"bad" in body:
                raise self.error("no room")
            return decode(body)

        return read


@pytest.mark.parametrize("error", [MemoryError, SystemExit])
@pytest.mark.parametrize("batch", [None, 10])
def test_what_fails_to_decode_for_another_reason_uses_up_its_retries(
    client: RmqClient, make_topic: MakeTopic, error: type[BaseException], batch: int | None
) -> None:
    topic = typed(make_topic(TopicType.PRIORITY, max_retries=1, retry=ImmediateRetry()), codec=BreakingCodec(error))
    got: list[Price] = []

    def draw(price: Price) -> None:
        got.append(price)

    def draw_all(prices: list[Price]) -> None:
        got.extend(prices)

    client.producer(topic).send_many(topic.message(name, Price(name, 1), priority=100) for name in ("a", "bad", "c"))
    listen(client, topic, draw if batch is None else draw_all, settled(client, topic), batch=batch)
    assert sorted(each.item for each in got) == ["a", "c"]
    [dead] = client.dead(topic).list()
    assert (dead.text, dead.error_type, dead.error_message, dead.attempts) == ("bad", error.__name__, "no room", 2)


def test_a_dead_payload_is_replayed_once_the_class_fits(client: RmqClient, price: Topic[Price]) -> None:
    @dataclass
    class Lenient:
        item: str
        pence: int = 1

    got: list[Lenient] = []

    def draw(price: Lenient) -> None:
        got.append(price)

    client.producer(price).send(BAD)
    listen(client, price, lambda delivery: None, lambda: stats_of(client, price).dead == 1)
    assert client.dead(price).redrive(DeadFilter(error_type="PayloadError")).redriven == 1
    with RmqClient(client.url) as later:
        listen(later, replace(price, payload=Lenient), draw, lambda: bool(got))
    assert got == [Lenient("bad", 1)]


def test_programs_with_other_classes_and_none_share_a_topic(client: RmqClient, price: Topic[Price]) -> None:
    other = Topic(price.name, price.type, payload=OtherPrice)
    plain = replace(price, payload=None)
    client.producer(plain).send(RangeMergeMessage("a", time_range_ms=1, body=b'{"item":"mug","pence":5}'))
    client.producer(price).send(price.message("b", MUG, time_range_ms=1))
    client.producer(other).send(other.message("c", OtherPrice("mug", 5.0), time_range_ms=1))
    with client.consumer(plain) as one, client.consumer(other) as two, client.consumer(price) as three:
        assert one.topic.payload is None
        (first,) = one.poll(1, 5)
        (second,) = two.poll(1, 5)
        (third,) = three.poll(1, 5)
        assert (first.body or b"")[:8] == b'{"item":'
        assert second.payload == OtherPrice("mug", 5.0)
        if third.content == b"c":  # a float is no int
            with pytest.raises(PayloadError):
                third.payload  # noqa: B018
        else:
            assert third.payload == MUG
        for each in (first, second, third):
            each.ack()
    assert client.topic(price.name).payload is None
    assert client.topic(price.name).with_payload_of(price).decode(b'{"item":"mug","pence":5}') == MUG


def test_a_consumer_decodes_on_demand_and_buries_by_hand(client: RmqClient, price: Topic[Price]) -> None:
    client.producer(price).send(BAD)
    with client.consumer(price) as consumer:
        (delivery,) = consumer.poll(1, 5)
        with pytest.raises(PayloadError) as caught:
            delivery.payload  # noqa: B018
        assert delivery.bury(caught.value)
    assert [dead.error_type for dead in client.dead(price).list()] == ["PayloadError"]


def test_columns_have_bodies_that_the_topic_decodes(client: RmqClient, price: Topic[Price]) -> None:
    got: list[Price] = []

    @client.listener(price, batch=10, columns=True)
    def draw(batch: DeliveryColumns) -> None:
        for row, body in enumerate(batch.bodies):
            try:
                got.append(price.decode(body))
            except PayloadError as error:
                batch.bury([row], error)

    bodies = [price.encode(MUG), BAD.body, price.encode(CUP)]
    client.producer(price).send_columns(["mug", "bad", "cup"], time_range="1ms", bodies=bodies)
    run_until(client, settled(client, price))
    check_dead_at_once(client, price, got)


def test_each_group_of_a_stream_gets_payloads_and_buries_for_itself(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = typed(make_topic(TopicType.STREAM, checked=False), codec=ZstdCodec(MsgpackCodec()))
    got: list[tuple[Price, str]] = []

    def draw(price: Price, delivery: StreamDelivery[Price]) -> None:
        got.append((price, delivery.group))

    producer = client.producer(topic)
    producer.send(topic.message("k", MUG))
    producer.send(StreamMessage("bad", body=b"bad"))
    producer.send(StreamMessage({"item": "fields", "pence": "5"}))
    producer.send(topic.message("k", CUP, slot_basis="b"))
    dead = client.stream(topic).dead("a")
    listen(client, topic, draw, lambda: len(got) == 2 and dead.count() == 2, group="a", start="all")
    assert got == [(MUG, "a"), (CUP, "a")]
    reasons = [each.error_message for each in dead.list()]
    assert reasons[0].startswith("the body cannot be decoded as Price: ")
    assert reasons[1] == f"the message has no body; topic {topic.name} needs one, which holds a payload"


def test_the_payload_is_that_of_the_winner(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = typed(make_topic(TopicType.RANGE_MERGE, merge=Merge(Newest())))
    got: list[tuple[Price, int]] = []

    def draw(price: Price, delivery: Delivery[Price]) -> None:
        got.append((price, delivery.merged))

    newest, late = (
        topic.message("k", CUP, time_range_ms=50, version=2),
        topic.message("k", MUG, time_range_ms=50, version=1),
    )
    client.producer(topic).send_many([newest, late])
    listen(client, topic, draw, lambda: bool(got))
    assert got == [(CUP, 2)]


@pytest.mark.parametrize("joins", [False, True])
def test_all_payloads_that_were_collected(client: RmqClient, make_topic: MakeTopic, joins: bool) -> None:
    merge = Merge(Collect(unique=True), max_count=PER_MESSAGE) if joins else Merge(Collect())
    topic = typed(make_topic(TopicType.RANGE_MERGE, merge=merge))
    got: list[list[Price]] = []

    def draw(prices: list[Price], delivery: Delivery[Price]) -> None:
        assert delivery.payloads == prices
        got.append(prices)

    options: Any = {"of": 2, "time_range": "1m"} if joins else {"time_range": "50ms"}
    client.producer(topic).send_many([topic.message("k", each, **options) for each in (MUG, CUP)])
    listen(client, topic, draw, lambda: bool(got))
    assert got == [[MUG, CUP]]


def test_a_collection_with_an_item_that_does_not_decode_is_dead_with_all_its_items(
    client: RmqClient, make_topic: MakeTopic
) -> None:
    topic = typed(make_topic(TopicType.RANGE_MERGE, merge=Merge(Collect())))
    items = [topic.message("k", MUG, time_range_ms=50), RangeMergeMessage("k", time_range_ms=50, body=b"bad")]
    client.producer(topic).send_many(items)
    listen(client, topic, lambda delivery: None, lambda: stats_of(client, topic).dead == 1)
    (dead,) = client.dead(topic).list()
    assert dead.items == (topic.encode(MUG), b"bad")


def test_a_failing_handler_is_retried_with_its_payload(client: RmqClient, price: Topic[Price]) -> None:
    got: list[Price] = []

    def draw(price: Price) -> None:
        got.append(price)
        if len(got) < 3:
            raise OSError("try again")

    client.producer(price).send(price.message("k", MUG, time_range_ms=1))
    listen(client, price, draw, lambda: stats_of(client, price).total("acked") == 1)
    assert got == [MUG] * 3


def test_dependencies_are_opened_and_closed_around_each_handler(client: RmqClient, price: Topic[Price]) -> None:
    said: list[str] = []
    done = threading.Event()

    def opened() -> Any:
        said.append("open")
        yield "db"
        said.append("close")
        done.set()

    def draw(price: Price, db: str = Depends(opened)) -> None:
        said.append(f"{price.item} {db}")

    client.producer(price).send(price.message("k", MUG, time_range_ms=1))
    listen(client, price, draw, done.is_set)
    assert said == ["open", "mug db", "close"]
