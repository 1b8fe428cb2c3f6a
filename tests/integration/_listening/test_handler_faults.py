"""Handlers, observers and log filters that fail in unusual ways: each delivery that was begun gets its outcome."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from rmq import (
    Adaptive,
    Delivery,
    ImmediateRetry,
    Observer,
    PriorityMessage,
    RmqClient,
    StreamMessage,
    Topic,
    TopicType,
    aio,
)
from rmq.errors import InvalidValueError
from tests.conftest import MakeTopic
from tests.support.clients import run_until, stats_of
from tests.support.waiting import wait_until


class StrFails(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


class StrExits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class StrInterrupts(BaseException):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class StrIsNoText(Exception):
    def __str__(self) -> Any:
        return 7


class NoTraceback(Exception):
    @property
    def __traceback__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise LookupError("no traceback")

    @property
    def __notes__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise LookupError("no notes")


class NotesExit(Exception):
    @property
    def __notes__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise SystemExit("no notes")


class ClassExits(Exception):
    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise SystemExit("no class")


class TruthFails(Exception):
    def __bool__(self) -> bool:
        raise SystemExit("no truth")


FAULTS: list[Callable[[], BaseException]] = [
    StrFails, StrExits, StrInterrupts, StrIsNoText, NoTraceback, SystemExit, GeneratorExit,
    lambda: ValueError("x" * 10_000_000), lambda: ValueError("\ud800"), lambda: ValueError(10**5000),
]  # fmt: skip
IDS = ["str", "exit", "interrupt", "no text", "traceback", "SystemExit", "GeneratorExit", "long", "surrogate", "digits"]


ASYNC_FAULTS: list[Callable[[], BaseException]] = [
    *FAULTS[:7],
    NotesExit,
    ClassExits,
    TruthFails,
    asyncio.CancelledError,
]


class Failing(logging.Filter):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self._error = error

    def filter(self, record: logging.LogRecord) -> bool:
        raise self._error("a filter of the program's")


@contextmanager
def failing_logs(error: type[BaseException] = LookupError) -> Iterator[None]:
    """All lines of the library meet a filter that fails."""
    filters = [
        (logging.getLogger(f"rmq.{name}"), Failing(error)) for name in ("worker", "planner", "leases", "runtime")
    ]
    for logger, each in filters:
        logger.addFilter(each)
    try:
        yield
    finally:
        for logger, each in filters:
            logger.removeFilter(each)


def tried(client: RmqClient, topic: Topic, **started: Any) -> None:
    """Start, and expect the good ones acked and the bad one dead: long before a lease ends."""
    client.start(**started)
    try:
        wait_until(lambda: (s := stats_of(client, topic)).dead == 1 and s.total("acked") == 20)
    finally:
        client.stop()


def new_topic(make_topic: MakeTopic) -> Topic:
    return make_topic(TopicType.PRIORITY, retry=ImmediateRetry(), max_retries=2)


def send(client: RmqClient, topic: Topic) -> None:
    client.producer(topic).send(PriorityMessage("bad", 1_000))
    client.producer(topic).send_many(PriorityMessage(f"good {number}", 100) for number in range(20))


@pytest.mark.parametrize("fault", FAULTS, ids=IDS)
@pytest.mark.parametrize("options", [{}, {"batch": 1}, {"adaptive": Adaptive(window_s=0.05, longest_pause_s=0.1)}])
def test_what_a_handler_raises_leaks_no_delivery(
    client: RmqClient, make_topic: MakeTopic, fault: Callable[[], BaseException], options: dict[str, Any]
) -> None:
    topic, seen = new_topic(make_topic), Counter[str]()

    @client.listener(topic, **options)
    def handle(given: Any) -> None:
        [delivery] = given if isinstance(given, list) else [given]
        seen[delivery.text] += 1
        if delivery.text == "bad":
            raise fault()

    send(client, topic)
    tried(client, topic)
    assert seen["bad"] == 3
    assert set(seen.values()) == {1, 3}


@pytest.mark.parametrize("error", [LookupError, SystemExit, KeyboardInterrupt])
def test_a_log_filter_that_fails_leaks_no_delivery(
    client: RmqClient, make_topic: MakeTopic, error: type[BaseException]
) -> None:
    topic = new_topic(make_topic)

    @client.listener(topic)
    def handle(delivery: Delivery) -> None:
        if delivery.text == "bad":
            raise ValueError("bad")

    send(client, topic)
    with failing_logs(error):
        tried(client, topic, handlers=1)


def test_a_gate_that_fails_leaks_no_delivery(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq._listening.concurrency import ListenerPermits

    topic, calls = new_topic(make_topic), Counter[str]()

    @client.listener(topic)
    def handle(delivery: Delivery) -> None:
        if delivery.text == "bad":
            raise ValueError("bad")

    def failing(name: str) -> Callable[..., None]:
        def fail(*_: object) -> None:
            calls[name] += 1
            if calls[name] <= 2:
                raise SystemExit(name)

        return fail

    monkeypatch.setattr(ListenerPermits, "call_started", failing("call_started"))
    monkeypatch.setattr(ListenerPermits, "call_ended", failing("call_ended"))
    send(client, topic)
    tried(client, topic, handlers=1)
    assert calls["call_ended"] == 23


def test_a_stream_delivery_is_not_leaked_either(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.STREAM, checked=False, retry=ImmediateRetry(), max_retries=1)
    seen: Counter[str] = Counter()

    @client.listener(topic, group="g", start="all")
    def handle(delivery: Delivery) -> None:
        seen[delivery.text] += 1
        if delivery.text == "bad":
            raise StrExits

    client.producer(topic).send_many(StreamMessage(text) for text in ("bad", "good"))
    run_until(
        client, lambda: client.stream(topic).dead("g").count() == 1 and not client.stream(topic).group("g").pending
    )
    assert seen == {"bad": 2, "good": 1}


@pytest.mark.parametrize("fault", ASYNC_FAULTS)
@pytest.mark.parametrize("batch", [None, 1])
def test_what_an_async_handler_raises_stops_no_listener(
    redis_url: str, client: RmqClient, make_topic: MakeTopic, fault: Callable[[], BaseException], batch: int | None
) -> None:
    topic, seen = new_topic(make_topic), Counter[str]()
    send(client, topic)

    async def run() -> None:
        async with aio.RmqClient(redis_url) as mine:

            @mine.listener(topic, batch=batch)
            async def handle(given: Any) -> None:
                [delivery] = given if isinstance(given, list) else [given]
                seen[delivery.text] += 1
                await asyncio.sleep(0)
                if delivery.text == "bad":
                    raise fault()

            await mine.start()
            async with asyncio.timeout(20):
                while (stats := await (await mine.inspect(topic)).stats()).dead < 1 or stats.total("acked") < 20:
                    await asyncio.sleep(0.01)

    with failing_logs():
        asyncio.run(run())
    assert seen["bad"] == 3
    assert set(seen.values()) == {1, 3}


# --- observers


class FailsAt(Observer):
    """Fails at one of the places where an observer is called."""

    def __init__(self, place: str, error: type[BaseException]) -> None:
        self.place, self.error, self.calls = place, error, 0

    def _fail(self, place: str) -> None:
        if place == self.place:
            self.calls += 1
            raise self.error(place)

    def handling(self, deliveries: Sequence[Delivery]) -> AbstractContextManager[None]:
        self._fail("call")
        return self._around()

    @contextmanager
    def _around(self) -> Generator[None]:
        self._fail("begin")
        yield
        self._fail("end")

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        self._fail("settled")


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, StrInterrupts])
@pytest.mark.parametrize("place", ["call", "begin", "end", "settled"])
def test_an_observer_that_fails_loses_and_repeats_nothing(
    client: RmqClient, make_topic: MakeTopic, place: str, error: type[BaseException]
) -> None:
    topic, seen = make_topic(TopicType.PRIORITY, slots=2), Counter[str]()
    observer = FailsAt(place, error)
    client.observers.all.append(observer)

    @client.listener(topic, threads=2)
    def handle(delivery: Delivery) -> None:
        seen[delivery.text] += 1

    client.producer(topic).send_many(PriorityMessage(f"m{number}", 100) for number in range(50))
    run_until(client, lambda: stats_of(client, topic).total("acked") == 50)
    assert seen == Counter(f"m{number}" for number in range(50))
    assert observer.calls


# --- handlers that do nothing when they are called


def test_handlers_that_do_nothing_are_refused(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)

    async def handle(delivery: Delivery) -> None: ...

    def entries(delivery: Delivery) -> Iterator[int]:
        yield 1

    for wrong, said in ((handle, "rmq.aio.RmqClient"), (entries, "return instead of yield"), (7, "a function")):
        with pytest.raises(InvalidValueError, match=said):
            client.listener(topic)(wrong)  # pyright: ignore
    with pytest.raises(InvalidValueError, match="on_lost"):
        client.listener(topic, on_lost=handle)(print)  # pyright: ignore


@pytest.mark.parametrize("batch", [None, 5])
@pytest.mark.filterwarnings("error")
def test_work_that_a_handler_returns_is_nacked(client: RmqClient, make_topic: MakeTopic, batch: int | None) -> None:
    topic, ran = make_topic(TopicType.PRIORITY, max_retries=0), list[str]()

    async def work(given: object) -> None:
        ran.append("done")

    client.listener(topic, batch=batch)(lambda given: work(given))
    client.producer(topic).send(PriorityMessage("a", 100))
    run_until(client, lambda: stats_of(client, topic).dead == 1)
    [dead] = client.dead(topic).list()
    assert (dead.error_type, ran) == ("InvalidValueError", [])
    assert "returned a coroutine" in dead.error_message


def test_work_that_an_async_handler_returns_is_nacked(redis_url: str, client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, max_retries=0)

    async def work() -> None: ...

    async def run() -> None:
        async with aio.RmqClient(redis_url) as mine:

            @mine.listener(topic)
            async def handle(delivery: aio.Delivery) -> object:
                return work()  # the await is missing

            await (await mine.producer(topic)).send(PriorityMessage("a", 100))
            await mine.start()
            async with asyncio.timeout(20):
                while not (await (await mine.inspect(topic)).stats()).dead:
                    await asyncio.sleep(0.01)

    asyncio.run(run())


# --- stopping


def test_no_message_is_begun_after_a_stop_whoever_waits_for_redis(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq._listening.worker import Worker

    topic, begun = make_topic(TopicType.PRIORITY), list[str]()
    both, go_on, redis_answers = threading.Barrier(3), threading.Event(), threading.Event()
    settle_only = Worker.settle_only

    def slow(self: Worker) -> None:
        if threading.current_thread().name.startswith("rmq-release"):
            redis_answers.wait(20)
        settle_only(self)

    monkeypatch.setattr(Worker, "settle_only", slow)
    monkeypatch.setattr("rmq._listening.worker.SLOW_S", 60.0)

    @client.listener(topic, threads=2, batch=3)
    def handle(deliveries: list[Delivery]) -> None:
        begun.extend(delivery.text for delivery in deliveries)
        both.wait(20)
        assert go_on.wait(20)

    monkeypatch.setattr(Worker, "room", lambda self: 9)
    client.producer(topic).send_many(PriorityMessage(f"m{number}", 100) for number in range(18))
    client.start()
    both.wait(20)  # each thread has begun 3 of its 9
    stopping = threading.Thread(target=client.stop)
    stopping.start()
    wait_until(lambda: any(thread.name.startswith("rmq-release") for thread in threading.enumerate()))
    try:
        go_on.set()
        wait_until(lambda: not any(thread.name == f"rmq-{topic.name}-1" for thread in threading.enumerate()))
        assert len(begun) == 6
    finally:
        both.abort()
        redis_answers.set()
        stopping.join(30)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("ending", ["stop", "close"])
def test_a_handler_may_end_its_own_client(
    redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, ending: str, at_once: bool
) -> None:
    """It used to meet an error of Python's, and the thread that renews leases went on for ever.

    `at_once`: before `start` has begun to record the history, which then met a closed client, or recorded for ever.
    """
    topic, ended = make_topic(TopicType.PRIORITY, checked=ending == "stop"), list[object]()
    client = RmqClient(redis_url)
    threads_before, record = {*threading.enumerate()}, RmqClient.record_history

    def record_late(client: RmqClient) -> None:
        wait_until(lambda: bool(ended))
        record(client)

    if at_once:
        monkeypatch.setattr(RmqClient, "record_history", record_late)

    @client.listener(topic, threads=2)
    def handle(delivery: Delivery) -> None:
        try:
            ended.append([each.text for each in client.stop(0.2)] if ending == "stop" else client.close())
        except BaseException as error:
            ended.append(error)

    client.producer(topic).send(PriorityMessage("last", 100))
    client.start()
    wait_until(lambda: bool(ended))
    assert ended == [["last"] if ending == "stop" else None]
    wait_until(lambda: not [each.name for each in threading.enumerate() if topic.name in each.name])
    wait_until(lambda: {*threading.enumerate()} <= threads_before, message="the end of all threads of the client")
    if ending == "stop":
        assert stats_of(client, topic).total("acked") == 1
    client.close()
