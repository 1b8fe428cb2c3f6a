"""Delayed queues whose values are of a class: they come as they were offered, merge by their bytes; none is lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet

from rmq import DelayedQueue, EncryptedCodec, JsonCodec, MsgpackCodec, RmqClient, TopicType, ZstdCodec, aio
from rmq.errors import InvalidBatchError, InvalidMessageError, InvalidTopicError, InvalidValueError
from tests.conftest import MakeTopic
from tests.support.sides import Side
from tests.support.waiting import wait_until

SECRET = EncryptedCodec([Fernet.generate_key()])
CODECS = {"json": None, "msgpack": MsgpackCodec(), "zstd": ZstdCodec(), "encrypted": SECRET}


@dataclass(frozen=True)
class Call:
    """Whom to call."""

    name: str
    tries: int = 1


@dataclass(frozen=True)
class Other:
    """What has no name."""

    number: int


ANN, BOB, EVE = Call("Ann"), Call("Bob", 2), Call("Eve", 3)

MakeQueue = Callable[..., DelayedQueue[Any]]


@pytest.fixture
def make_queue(make_topic: MakeTopic, client: RmqClient, side: Side) -> Iterator[MakeQueue]:
    made: list[DelayedQueue[Any]] = []

    def make(name: str | None = None, **options: Any) -> DelayedQueue[Any]:
        made.append(side.queue(client, name or make_topic(TopicType.FIXED_TIME).name, **options))
        return made[-1]

    yield make
    for queue in made:
        queue.close()


@pytest.mark.parametrize("codec", CODECS)
def test_values_come_as_they_were_offered(make_queue: MakeQueue, codec: str) -> None:
    queue = make_queue(payload=Call, codec=CODECS[codec])
    queue.offer(ANN, "0s")
    assert queue.take(50.0) == ANN
    queue.offer_many([(BOB, "0s"), (EVE, timedelta(0))])
    assert queue.take_many(1, 50.0) + queue.take_many(1, 50.0) == [BOB, EVE]
    queue.offer_many((each, "0s") for each in (ANN, BOB))
    with queue.taking(50.0) as value:
        assert value == ANN
    assert (queue.poll(50.0), queue.poll()) == (BOB, None)


@pytest.mark.parametrize("codec", CODECS)
def test_equal_values_are_two_elements_that_are_found(make_queue: MakeQueue, codec: str) -> None:
    queue = make_queue(payload=Call, codec=CODECS[codec], slots=4)
    queue.offer_many([(ANN, "1m"), (Call("Ann"), "1m"), (BOB, "1m")])
    assert sorted(each.name for each in queue) == ["Ann", "Ann", "Bob"]
    assert [queue.remove(Call("Ann")) for _ in range(3)] == [True, True, False]
    assert ([*queue], queue.size()) == ([BOB], 1)


@pytest.mark.parametrize("codec", ["json", "msgpack", "zstd"])
def test_equal_values_merge(make_queue: MakeQueue, codec: str) -> None:
    queue = make_queue(payload=Call, codec=CODECS[codec], merge=True)
    for delay in ("1m", "0s"):
        queue.offer(Call("Ann"), delay)
    assert queue.offer_many([(Call("Bob", 2), "1m"), (BOB, "1m")]).merged == 1
    assert queue.take(50.0) == ANN
    assert [queue.remove(BOB), queue.remove(BOB), queue.size()] == [True, False, 0]


def test_what_was_claimed_ahead_is_removed_by_its_value(make_queue: MakeQueue) -> None:
    queue = make_queue(payload=Call, codec=SECRET)
    values = [Call("Ann", number) for number in range(10)]
    queue.offer_many([(each, "0s") for each in values])
    left = {*values} - {queue.take(50.0), queue.take(50.0)}
    assert {*queue} == left
    gone = left.pop()
    assert [queue.remove(gone), queue.remove(gone), queue.size()] == [True, False, 7]


@pytest.mark.parametrize("codec", [SECRET, ZstdCodec(SECRET)], ids=["encrypted", "compressed"])
def test_encrypted_values_do_not_merge(make_queue: MakeQueue, codec: Any) -> None:
    with pytest.raises(
        InvalidTopicError, match=r"merge=True .* the same value differently each time; use only one of"
    ) as seen:
        make_queue(payload=Call, codec=codec, merge=True)
    assert "keys=" not in str(seen.value)


class Salted:
    """A codec of a user that makes other bytes each time."""

    def __init__(self) -> None:
        self.salt = itertools.count()

    def encoder(self, kind: type) -> Callable[[Any], bytes]:
        encode = JsonCodec().encoder(kind)
        return lambda payload: b"%d " % next(self.salt) + encode(payload)

    def decoder(self, kind: type) -> Callable[[bytes], Any]:
        decode = JsonCodec().decoder(kind)
        return lambda body: decode(body.partition(b" ")[2])


def test_a_codec_that_makes_other_bytes_each_time_does_not_merge(make_queue: MakeQueue) -> None:
    queue = make_queue(payload=Call, codec=Salted(), merge=True)
    for _ in range(2):
        with pytest.raises(InvalidMessageError, match="so equal values would never merge"):
            queue.offer(ANN, "0s")
    two = make_queue(payload=Call, codec=Salted())
    two.offer_many([(ANN, "1m")] * 2)
    assert [two.remove(ANN) for _ in range(3)] == [True, True, False]


def test_what_is_no_value_of_the_class_is_refused(make_queue: MakeQueue) -> None:
    queue = make_queue(payload=Call)
    for wrong in ("Ann", b"Ann", Other(1), None):
        with pytest.raises(InvalidMessageError, match="has payloads of class Call"):
            queue.offer(wrong, "0s")
        with pytest.raises(InvalidBatchError, match=r"^value 2 of offer_many: .*payloads of class Call") as refused:
            queue.offer_many([(ANN, "0s"), (wrong, "0s")])
        assert refused.value.not_stored == ((ANN, "0s"), (wrong, "0s"))
        with pytest.raises(InvalidMessageError, match="payloads of class Call"):
            queue.remove(wrong)
    with pytest.raises(InvalidMessageError, match="it must have 1 to"):
        queue.offer(Call("x" * 70_000), "0s")
    assert queue.size() == 0
    wrong_options: list[tuple[dict[str, Any], str]] = [
        ({"payload": str}, "it must be a dataclass"),
        ({"codec": JsonCodec()}, "a codec needs a payload class"),
    ]
    for options, says in wrong_options:
        with pytest.raises(InvalidTopicError, match=says):
            make_queue(**options)


def test_an_encrypted_value_stands_in_no_error(make_queue: MakeQueue) -> None:
    queue = make_queue(payload=Call, codec=SECRET)
    wrongs: Any = Call("Ann-to-hide"), (5, Call("Ann-to-hide")), (Other(1), Call("Ann-to-hide"), 3)
    for wrong in wrongs:
        with pytest.raises(InvalidBatchError) as refused:
            queue.offer_many([wrong])
        assert "to-hide" not in str(refused.value)


def test_what_does_not_decode_goes_to_the_dead_letters(
    make_queue: MakeQueue, client: RmqClient, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make_queue(payload=Call)
    others = make_queue(queue.topic.name, payload=Other)
    others.offer_many([(Other(1), "0s"), (Other(2), "0s")])
    queue.offer(ANN, "200ms")
    with caplog.at_level(logging.WARNING):
        assert list(queue) == [ANN]
        assert not queue.remove(BOB)
        assert queue.take(50.0) == ANN
    assert "a value that cannot be decoded was skipped" in caplog.text
    others.offer_many([(Other(3), "0s")])
    queue.offer(BOB, "200ms")
    assert queue.take_many(10, 50.0) == [BOB]
    others.offer_many([(Other(4), "0s")])
    wait_until(lambda: queue.poll() is None and queue.size() == 0)
    dead = client.dead(queue.topic)
    assert dead.count() == 4
    assert {letter.error_type for letter in dead.list()} == {"PayloadError"}
    dead.purge()


class Short:
    """A codec for which memory is short the first time."""

    def __init__(self) -> None:
        self.times = 1

    def encoder(self, kind: type) -> Callable[[Any], bytes]:
        return JsonCodec().encoder(kind)

    def decoder(self, kind: type) -> Callable[[bytes], Any]:
        decode = JsonCodec().decoder(kind)

        def decoded(body: bytes) -> Any:
            if self.times:
                self.times -= 1
                raise MemoryError("short")
            return decode(body)

        return decoded


def test_a_value_for_which_memory_is_short_comes_again(make_queue: MakeQueue, client: RmqClient) -> None:
    queue = make_queue(payload=Call, codec=Short())
    queue.offer_many([(ANN, "0s")])
    with pytest.raises(MemoryError):
        queue.take(50.0)
    assert queue.take(50.0) == ANN
    assert client.dead(queue.topic).count() == 0


@pytest.mark.parametrize("options", [{}, {"payload": Call}], ids=["bytes", "typed"])
def test_a_claim_is_settled_and_read(
    options: dict[str, Any], redis_url: str, make_topic: MakeTopic
) -> None:  # the plain side has these
    with (
        RmqClient(redis_url) as client,
        DelayedQueue(client, make_topic(TopicType.FIXED_TIME).name, **options) as queue,
    ):
        value: Any = ANN if options else b"Ann"
        queue.offer_many([(value, "0s"), (value, "0s")])
        first, *more = queue.claim_many(2, 50.0)
        second = more[0] if more else queue.claim(50.0)
        assert (queue.value_of(first), queue.values_of([first, second])) == (value, [value, value])
        queue.finish(first)
        queue.put_back(second, ValueError("not now"))
        assert queue.size() == 1
        assert queue.take(50.0) == value


@pytest.mark.parametrize("wrong", [7, None, b"Ann", ANN])
def test_what_is_no_claim_is_refused(wrong: Any, redis_url: str, make_topic: MakeTopic) -> None:
    with RmqClient(redis_url) as client, DelayedQueue(client, make_topic(TopicType.FIXED_TIME).name) as queue:
        refused: list[tuple[Any, tuple[Any, ...]]] = [
            (queue.finish, (wrong,)),
            (queue.put_back, (wrong, ValueError())),
            (queue.keep, (wrong,)),
            (queue.keep_many, ([wrong],)),
            (queue.value_of, (wrong,)),
            (queue.values_of, ([wrong],)),
        ]
        for method, given in refused:
            with pytest.raises(InvalidValueError, match=r"delivery is .*; it must be one that `claim` returned"):
                method(*given)
        for method in (queue.keep_many, queue.values_of):
            with pytest.raises(InvalidValueError, match=r"deliver(y|ies) is"):
                method(wrong)


def test_a_claim_of_another_queue_is_refused(redis_url: str, make_topic: MakeTopic) -> None:
    names = [make_topic(TopicType.FIXED_TIME).name for _ in range(2)]
    with RmqClient(redis_url) as client, DelayedQueue(client, names[0]) as one, DelayedQueue(client, names[1]) as two:
        one.offer("Ann", "0s")
        claimed = one.claim(50.0)
        with pytest.raises(InvalidValueError, match=f"delivery is of topic {names[0]}; .* queue {names[1]}"):
            two.finish(claimed)
        with pytest.raises(InvalidValueError, match="error is 7; it must be an exception or a str"):
            one.put_back(claimed, 7)  # pyright: ignore[reportArgumentType]
        one.finish(claimed)


def test_an_async_iterable_is_offered(redis_url: str, make_topic: MakeTopic) -> None:
    async def calls() -> AsyncIterator[tuple[Call, str]]:
        for number in range(3):
            yield Call("Ann", number), "0s"

    async def offered() -> list[Call]:
        async with (
            aio.RmqClient(redis_url) as client,
            aio.DelayedQueue(client, make_topic(TopicType.FIXED_TIME).name, payload=Call) as queue,
        ):
            assert (await queue.offer_many(calls())).new == 3
            found: list[Call] = []
            while len(found) < 3:
                found += await queue.take_many(3, 50.0)
            return found

    assert [each.tries for each in asyncio.run(offered())] == [0, 1, 2]
