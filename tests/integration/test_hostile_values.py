"""Hostile values in public calls end in an error of the library's family, and nothing else is raised.

Each parameter of each call gets each of the values, while the others are good. What comes is taken, or refused with an
`RmqError`, a `ValueError` or a `TypeError`: never an AttributeError, a UnicodeEncodeError, an OverflowError. A process
that ends here has met an int of more than 4,300 digits in a request: hiredis cannot write one down.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rmq import (
    Adaptive,
    Collect,
    Consumer,
    Control,
    Coordinator,
    DeadFilter,
    DeadLetters,
    DelayedQueue,
    ExponentialRetry,
    Fixed,
    FixedTimeMessage,
    History,
    Inspection,
    InvalidValueError,
    LadderRetry,
    Leading,
    Merge,
    PriorityMessage,
    Producer,
    RangeMergeMessage,
    Retention,
    RmqClient,
    RmqError,
    Sliding,
    StreamMessage,
    StreamTopic,
    Sum,
    Topic,
    TopicType,
    Webhook,
)
from tests.conftest import MakeTopic
from tests.support.sides import SIDES, side_of

Call = Callable[[Any], Any]


class Text(str):
    """A subclass of text."""


class Bytes(bytes):
    """A subclass of bytes."""


class Number(int):
    """A subclass of int."""


class Raising:
    """A collection that fails while it is gone through."""

    def __iter__(self) -> Iterator[object]:
        yield "x"
        raise LookupError("of the caller")


ITSELF: list[Any] = []
ITSELF.append(ITSELF)

VALUES: list[Any] = [
    "\ud800", "a\x00b", "", " ", "x" * 200_000, b"", b"\xff\xfe", b"x" * 200_000, bytearray(b"x"), memoryview(b"x"),
    Text("x"), Bytes(b"x"), Number(5), 10**400, -(10**400), 10**5000, 2**53, 2**63, 2**64, -1, 0, True, False,
    float("nan"), float("inf"), float("-inf"), 1e308, -0.0, 0.5, None, object(), [], {}, set[int](), (), ITSELF, [None],
    ["\ud800"], {"a": float("nan")}, {1: 2}, {"\ud800": 1}, Decimal("1.5"), Decimal("NaN"), Decimal("Infinity"),
    Fraction(1, 3), 1j, np.int64(5), np.float64("nan"), np.float32(1.5), np.str_("x"), np.bytes_(b"x"), np.bool_(True),
    np.array([1, 2]), np.array(["x"]), np.datetime64("2030-01-01"), datetime(2030, 1, 1),
    datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC), timedelta.max, timedelta.min,
    timedelta(microseconds=1), Raising(), lambda: None, type, range(3), ...,
]  # fmt: skip


def each_parameter(
    method: Callable[..., Any], call: Callable[..., object], good: dict[str, Any], skip: str = "self"
) -> Iterator[tuple[str, Call]]:
    """Yield a call for each parameter of a method: it takes a value for that one."""
    for name in inspect.signature(method).parameters:
        if name not in ("self", "args", "options", *skip.split()):
            yield f"{method.__qualname__}({name}=)", lambda value, name=name: call(**good | {name: value})


def raw_errors(calls: Iterable[tuple[str, Call]]) -> list[str]:
    found: list[str] = []
    for name, call in calls:
        for number, value in enumerate(VALUES):
            try:
                result = call(value)
                if inspect.isgenerator(result):
                    next(result, None)
                    result.close()
            except RmqError:
                continue
            except (ValueError, TypeError) as error:
                if isinstance(error, UnicodeError):
                    found.append(f"{name}, value {number}: {type(error).__name__}: {error}"[:200])
            except LookupError as error:
                if "of the caller" not in str(error):
                    found.append(f"{name}, value {number}: {type(error).__name__}: {error}"[:200])
            except Exception as error:
                found.append(f"{name}, value {number}: {type(error).__name__}: {error}"[:200])
    return found


def test_definitions_and_messages() -> None:
    priority = Topic("x", TopicType.PRIORITY)
    made: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (Topic, {"name": "x", "type": TopicType.PRIORITY}), (Topic, {"name": "x", "type": TopicType.STREAM}),
        (Topic, {"name": "x", "type": TopicType.RANGE_MERGE, "merge": Merge(Sum())}), (priority.message, {}),
        (PriorityMessage, {"content": "x", "priority": 5}), (RangeMergeMessage, {"content": "x"}),
        (FixedTimeMessage, {"content": "x", "fixed_time_ms": 2**41}), (StreamMessage, {"content": "x"}),
        (ExponentialRetry, {}), (LadderRetry, {"steps": ("1s",)}), (Fixed, {"time_range": "5ms"}),
        (Sliding, {"quiet": "5ms", "max_wait": "10ms"}), (Leading, {"time_range": "5ms"}), (Collect, {}),
        (Merge, {"reduce": Sum()}), (Retention, {}), (Adaptive, {}), (DeadFilter, {}),
    ]  # fmt: skip
    assert raw_errors(each for make, good in made for each in each_parameter(make, make, good)) == []


@pytest.mark.parametrize("side", SIDES)
def test_sends(side: str, redis_url: str, make_topic: MakeTopic) -> None:
    window = Fixed("5ms")
    kinds: list[tuple[Topic, type[Any], dict[str, Any], dict[str, Any]]] = [
        (make_topic(TopicType.PRIORITY), PriorityMessage, {"priority": 5}, {"priorities": 5}),
        (make_topic(TopicType.FIXED_TIME), FixedTimeMessage, {"fixed_time_ms": 2**41}, {"fixed_times": [2**41]}),
        (make_topic(TopicType.RANGE_MERGE), RangeMergeMessage, {"time_range": "5ms"}, {"time_range": "5ms"}),
        (make_topic(TopicType.RANGE_MERGE, merge=Merge(Sum(), window)), RangeMergeMessage, {"body": 1}, {}),
        (make_topic(TopicType.RANGE_MERGE, merge=Merge(Collect(), window)), RangeMergeMessage, {"body": b"a"}, {}),
        (make_topic(TopicType.STREAM, checked=False), StreamMessage, {}, {}),
    ]

    def calls(client: RmqClient) -> Iterator[tuple[str, Call]]:
        for topic, kind, value, column in kinds:
            producer, good = client.producer(topic), {"content": "x"} | value
            message = kind(**good)
            yield from each_parameter(Producer.send, producer.send, {"message": message})
            yield from each_parameter(Producer.send_many, producer.send_many, {"messages": [message]})
            for name, call in each_parameter(kind, kind, good):
                yield f"send({name})", lambda value, call=call, producer=producer: producer.send(call(value))
                yield (
                    f"send_many({name})",
                    lambda value, call=call, producer=producer: producer.send_many([call(value)]),
                )
            for name, call in each_parameter(
                Producer.send_columns, producer.send_columns, {"contents": ["x"]} | column, skip="self"
            ):
                yield name, call
                yield f"{name}[0]", lambda value, call=call: call([value])

    with side_of(side) as used, used.client(redis_url) as client:
        assert raw_errors(calls(client)) == []


@pytest.mark.parametrize("side", SIDES)
def test_all_other_calls(side: str, redis_url: str, make_topic: MakeTopic) -> None:
    topic, stream = make_topic(TopicType.PRIORITY, slots=2), make_topic(TopicType.STREAM, checked=False)
    queue = make_topic(TopicType.FIXED_TIME).name
    waits = "timeout self follow every_s per_second"
    good: dict[str, Any] = {"content": "x", "contents": ["x"], "group": "g", "slot": 0, "place": "store", "name": "n"}
    good |= {"confirm": topic.name, "entry_id": "1-1", "ids": ["1-1"], "number": 1, "priority": 5, "start": "new"}
    left_out = {"follow", "tail", "dead", "topic", "on_dead", "take_turn", "append", "record", "close", "extend"}

    def methods(kind: type[Any], target: Any, *names: str) -> Iterator[tuple[str, Call]]:
        for name in names or [name for name in vars(kind) if name[0] != "_" and name not in left_out]:
            method = getattr(kind, name)
            if not inspect.isfunction(method):
                continue
            needed = [each.name for each in inspect.signature(method).parameters.values() if each.default is each.empty]
            given = {each: good[each] for each in needed if each in good}
            if name == "reschedule":
                given["due_in"] = 5
            yield from each_parameter(method, getattr(target, name), given, skip=waits)

    def calls(client: RmqClient) -> Iterator[tuple[str, Call]]:
        client.producer(topic).send_many(PriorityMessage(f"m{number}", 5) for number in range(20))
        yield from each_parameter(RmqClient.consumer, client.consumer, {"topic": topic})
        yield from each_parameter(RmqClient.consumer, client.consumer, {"topic": stream, "group": "g"})
        with client.consumer(topic) as consumer:
            yield from methods(Consumer, consumer, "poll", "poll_columns", "ack", "extend")
        for name in ("inspect", "dead", "control", "stream", "change_topic", "adopt"):
            yield from each_parameter(getattr(RmqClient, name), getattr(client, name), {"topic": topic})
        yield "topic(name=)", lambda value: client.topic(name=value)
        yield from methods(Inspection, client.inspect(topic), "stats", "peek", "find", "search", "audit")
        yield from methods(Control, client.control(topic))
        yield from methods(DeadLetters, client.dead(topic), "list", "count", "redrive", "purge")
        yield from methods(StreamTopic, client.stream(stream))
        yield from methods(History, client.history(), "last")

    def offers(delayed: DelayedQueue) -> Iterator[tuple[str, Call]]:
        yield from each_parameter(DelayedQueue.offer, delayed.offer, {"value": "x", "delay": 5})
        yield from each_parameter(DelayedQueue.remove, delayed.remove, {"value": "x"})
        yield from each_parameter(DelayedQueue.offer_many, delayed.offer_many, {})
        yield "offer_many([(value, )])", lambda value: delayed.offer_many([(value, "5ms")])
        yield "offer_many([(, delay)])", lambda value: delayed.offer_many([("x", value)])

    with side_of(side) as used, used.client(redis_url) as client:
        assert raw_errors(calls(client)) == []
        with used.queue(client, queue) as delayed:
            assert raw_errors(offers(delayed)) == []
        options = [name for name in inspect.signature(DelayedQueue).parameters if name not in ("client", "self")]
        assert (
            raw_errors(
                (
                    f"DelayedQueue({name}=)",
                    lambda value, name=name: used.queue(client, **{"name": queue} | {name: value}),
                )
                for name in options
                if name != "name"
            )
            == []
        )


def test_a_coordinator_and_a_listener(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    options = "batch columns threads on_lost group start adaptive weight resume_as".split()
    with RmqClient(redis_url) as client:
        client.producer(topic)
        assert (
            raw_errors(
                (
                    f"listener({name}=)",
                    lambda value, name=name: client.listener(topic, **{name: value})(lambda delivery: None),
                )
                for name in options
            )
            == []
        )
        starts = each_parameter(RmqClient.start, RmqClient(redis_url).start, {})
        assert raw_errors(starts) == []
    assert raw_errors(each_parameter(Coordinator, Coordinator, {"hosts": "localhost:1"}, skip="on_change")) == []


@pytest.mark.parametrize("hosts", ["?", "/path", "host:port", "host:99999", "[::1", ",host:2181", "\ud800:1"])
def test_hosts_that_lead_to_no_zookeeper_are_refused_at_once(hosts: str) -> None:
    with pytest.raises(InvalidValueError, match=r"hosts is .*; it must be like host:2181,host:2181"):
        Coordinator(hosts)


def test_a_webhook() -> None:
    posts = {"url": "http://localhost:1/", "secret": b"s", "headers": {"Accept": "*/*"}}
    assert raw_errors(each_parameter(Webhook, Webhook, posts)) == []
    assert raw_errors([("headers[]", lambda value: Webhook("http://localhost:1/", headers={"Accept": value}))]) == []


@pytest.mark.parametrize("secret", ["text", bytearray(b"s"), 1])
def test_a_webhook_whose_secret_is_no_bytes_is_refused_before_its_first_post(secret: Any) -> None:
    with pytest.raises(InvalidValueError, match="webhook secret is of type"):
        Webhook("http://localhost:1/", secret=secret)
