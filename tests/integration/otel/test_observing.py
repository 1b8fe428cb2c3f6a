"""What observers are told, and that they cannot do harm."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta

import pytest

from rmq import Delivery, FixedTimeMessage, Observer, PriorityMessage, RmqClient, Topic, TopicType, aio
from rmq.errors import FixedTimePassedError
from tests.conftest import MakeTopic
from tests.support.clients import run_until
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until


class Settled(Observer):
    """Notes what is settled, and may fail at it."""

    def __init__(self, fails: bool = False) -> None:
        self.contents: list[str] = []
        self._fails = fails

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        self.contents += [delivery.text for delivery in deliveries]
        if self._fails:
            raise RuntimeError("no room for figures")


def test_outcomes_that_were_given_up_are_not_told() -> None:
    observer, begun, ended = Settled(), threading.Event(), threading.Event()
    with RedisServer() as server, RmqClient(server.url, timeout_s=0.2, deadline_s=0.4) as client:
        client.observers.all.append(observer)
        topic = Topic("given-up", TopicType.PRIORITY, lease=timedelta(seconds=1))

        @client.listener(topic)
        def handle(delivery: Delivery) -> None:
            if delivery.text == "last":
                begun.set()
                ended.wait(60)

        client.producer(topic).send(PriorityMessage("first", 100))
        client.start()
        wait_until(lambda: observer.contents == ["first"], 60)
        client.producer(topic).send(PriorityMessage("last", 100))
        assert begun.wait(60)
        server.kill()
        ended.set()
        client.stop()
        assert observer.contents == ["first"]


def test_an_observer_that_fails_settles_nothing_twice(redis_url: str, make_topic: MakeTopic) -> None:
    topic, observer = make_topic(TopicType.PRIORITY), Settled(fails=True)
    with RmqClient(redis_url) as client:
        client.observers.all.append(observer)

        @client.listener(topic)
        def handle(delivery: Delivery) -> None:
            del delivery

        client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(30))
        run_until(client, lambda: client.inspect(topic).stats().total("acked") == 30, 60)
    assert sorted(observer.contents) == sorted(f"m{i}" for i in range(30))


class Broken(Observer):
    """Fails before or after what it watches."""

    def __init__(self, before: bool) -> None:
        self._before = before

    @contextmanager
    def sending(self, topic: Topic, messages: int) -> Generator[str]:
        del topic, messages
        self._fail(self._before)
        yield ""
        self._fail(True)

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        del deliveries
        self._fail(self._before)
        yield
        self._fail(True)

    def _fail(self, now: bool) -> None:
        if now:
            raise RuntimeError("no room for figures")


@pytest.mark.parametrize("before", [True, False])
def test_neither_sends_nor_handlers_fail_with_an_observer(redis_url: str, make_topic: MakeTopic, before: bool) -> None:
    topic = make_topic(TopicType.PRIORITY, max_retries=0)
    with RmqClient(redis_url) as client:
        client.observers.all.append(Broken(before))

        @client.listener(topic)
        def handle(delivery: Delivery) -> None:
            if delivery.text == "bad":
                raise ValueError("no")

        producer = client.producer(topic)
        assert producer.send(PriorityMessage("good", 100)).new == 1
        assert producer.send_many([PriorityMessage("bad", 100)]).new == 1
        client.start()
        wait_until(lambda: client.inspect(topic).stats().total("acked") == 1, 60)
        wait_until(lambda: client.inspect(topic).stats().dead == 1, 60)
        client.stop()
        assert [message.error_type for message in client.dead(topic).list()] == ["ValueError"]


class Falsy(Exception):
    """An error that counts as nothing, as an exception does that is a container, too, and empty."""

    def __len__(self) -> int:
        return 0


class Seen(Observer):
    """Notes how handlers end."""

    def __init__(self) -> None:
        self.ends: list[type[BaseException] | None] = []

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        del deliveries
        try:
            yield
        except BaseException as error:
            self.ends.append(type(error))
            raise
        self.ends.append(None)


def test_observers_are_told_of_an_error_that_counts_as_nothing(redis_url: str, make_topic: MakeTopic) -> None:
    topic, observer = make_topic(TopicType.PRIORITY, max_retries=0), Seen()
    with RmqClient(redis_url) as client:
        client.observers.all.append(observer)

        @client.listener(topic)
        def handle(delivery: Delivery) -> None:
            raise Falsy

        client.producer(topic).send(PriorityMessage("bad", 100))
        run_until(client, lambda: client.inspect(topic).stats().dead == 1, 60)
    assert observer.ends == [Falsy]


class Hooked(Observer):
    """Notes its hooks, and fails in the one that is named."""

    def __init__(self, told: list[str], name: str = "", fails: str = "", essential: bool = True) -> None:
        self.essential = essential
        self._told, self._name, self._fails = told, name, fails

    def before_send(self, topic: Topic, messages: int) -> None:
        self._tell("before_send", f"{topic.type.name} {messages}")

    def after_send(self, topic: Topic, messages: int) -> None:
        self._tell("after_send", f"{topic.type.name} {messages}")

    def failed_send(self, topic: Topic, messages: int, error: BaseException) -> None:
        self._tell("failed_send", type(error).__name__)

    def before_handler(self, deliveries: Sequence[Delivery]) -> None:
        self._tell("before_handler", *(each.text for each in deliveries))

    def after_handler(self, deliveries: Sequence[Delivery]) -> None:
        self._tell("after_handler", *(each.text for each in deliveries))

    def failed_handler(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        self._tell("failed_handler", *(each.text for each in deliveries), type(error).__name__)

    def _tell(self, hook: str, *words: str) -> None:
        self._told.append(" ".join((self._name + hook, *words)))
        if hook == self._fails:
            raise RuntimeError(f"{hook} failed")


def handled_by(client: RmqClient, topic: Topic, fails: bool = False, told: list[str] | None = None) -> list[str]:
    """Handle one message, and return the contents that were handled and the errors of dead messages."""
    seen: list[str] = []

    @client.listener(topic)
    def handle(delivery: Delivery) -> None:
        seen.append(delivery.text)
        if told is not None:
            told.append("handler")
        if fails:
            raise ValueError("no")

    client.producer(topic).send(PriorityMessage("m", 100))
    run_until(client, lambda: (stats := client.inspect(topic).stats()).total("acked") + stats.dead == 1, 60)
    return seen + [f"dead: {message.error_type}" for message in client.dead(topic).list()]


@pytest.mark.parametrize("fails", [False, True])
def test_hooks_stand_around_handlers_and_sends_and_end_in_reverse_order(
    redis_url: str, make_topic: MakeTopic, fails: bool
) -> None:
    told: list[str] = []
    with RmqClient(redis_url) as client:
        client.observers.all += [Hooked(told, "1."), Hooked(told, "2.", essential=False)]
        topic = make_topic(TopicType.PRIORITY, max_retries=0)
        assert handled_by(client, topic, fails, told) == ["m"] + ["dead: ValueError"] * fails
    end = "failed_handler m ValueError" if fails else "after_handler m"
    sent = [
        "1.before_send PRIORITY 1",
        "2.before_send PRIORITY 1",
        "2.after_send PRIORITY 1",
        "1.after_send PRIORITY 1",
    ]
    assert told == [*sent, "1.before_handler m", "2.before_handler m", "handler", f"2.{end}", f"1.{end}"]


@pytest.mark.parametrize(("hook", "called"), [("before_handler", False), ("after_handler", True)])
def test_the_error_of_an_essential_observer_is_that_of_the_handler(
    redis_url: str, make_topic: MakeTopic, hook: str, called: bool
) -> None:
    for essential in (True, False):
        with RmqClient(redis_url) as client:
            client.observers.all.append(Hooked([], fails=hook, essential=essential))
            topic = make_topic(TopicType.PRIORITY, max_retries=0)
            expected = ["m"] * called + ["dead: RuntimeError"] if essential else ["m"]
            assert handled_by(client, topic) == expected


def test_an_essential_observer_prevents_sends_and_its_error_is_raised(redis_url: str, make_topic: MakeTopic) -> None:
    told: list[str] = []
    topic = make_topic(TopicType.PRIORITY)
    with RmqClient(redis_url) as client:
        client.observers.all += [Hooked(told), Hooked(told, "2.", fails="before_send")]
        producer = client.producer(topic)
        for send in (
            lambda: producer.send(PriorityMessage("m", 1)),
            lambda: producer.send_columns(["m"], priorities=1),
        ):
            with pytest.raises(RuntimeError, match="before_send failed"):
                send()
        assert client.inspect(topic).stats().backlog == 0
    assert told == ["before_send PRIORITY 1", "2.before_send PRIORITY 1", "failed_send RuntimeError"] * 2


class Swallowing(Observer):
    """Swallows the errors of handlers, and would swallow those of sends."""

    essential = True

    @contextmanager
    def sending(self, topic: Topic, messages: int) -> Generator[str]:
        with suppress(Exception):
            yield ""

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        with suppress(ValueError):
            yield


def test_an_essential_observer_may_swallow_errors_of_handlers_but_not_of_sends(
    redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.FIXED_TIME)
    with RmqClient(redis_url) as client:
        client.observers.all.append(Swallowing())
        with pytest.raises(FixedTimePassedError):
            client.producer(topic).send(FixedTimeMessage("m", fixed_time_ms=1))
        assert handled_by(client, make_topic(TopicType.PRIORITY, max_retries=0), fails=True) == ["m"]


@pytest.mark.parametrize("sends", [False, True])
def test_no_observer_swallows_what_another_raised_before_the_send_or_handler(
    redis_url: str, make_topic: MakeTopic, sends: bool
) -> None:
    class SwallowingAll(Swallowing):
        @contextmanager
        def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
            with suppress(Exception):
                yield

    topic = make_topic(TopicType.PRIORITY, max_retries=0)
    with RmqClient(redis_url) as client:
        client.observers.all += [SwallowingAll(), Hooked([], fails="before_send" if sends else "before_handler")]
        if sends:
            with pytest.raises(RuntimeError, match="before_send failed"):
                client.producer(topic).send(PriorityMessage("m", 1))
            return
        assert handled_by(client, topic) == ["dead: RuntimeError"]
        assert [message.error_message for message in client.dead(topic).list()] == ["before_handler failed"]


def test_a_failed_hook_settles_what_the_handler_left_open(redis_url: str, make_topic: MakeTopic) -> None:
    class Burying(Observer):
        def failed_handler(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
            for delivery in deliveries:
                delivery.bury(f"never again: {error}")

    with RmqClient(redis_url) as client:
        client.observers.all.append(Burying())
        topic = make_topic(TopicType.PRIORITY, max_retries=5)
        assert handled_by(client, topic, fails=True)[0] == "m"
        assert [message.error_message for message in client.dead(topic).list()] == ["never again: no"]


session: ContextVar[str] = ContextVar("session", default="none")


class Session(Observer):
    """Opens a session for a handler, as a program on asyncio does."""

    essential = True

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def before_handler(self, deliveries: Sequence[Delivery]) -> None:
        await asyncio.sleep(0)
        assert session.get() == "none"
        session.set(f"session of {deliveries[0].text}")

    async def after_handler(self, deliveries: Sequence[Delivery]) -> None:
        await asyncio.sleep(0)
        self.ended.append(f"commit {deliveries[0].text} in {session.get()}")

    async def failed_handler(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        await asyncio.sleep(0)
        self.ended.append(f"rollback {deliveries[0].text} in {session.get()} for {type(error).__name__}")


def test_hooks_of_asyncio_wait_and_share_their_context_with_the_handler(redis_url: str, make_topic: MakeTopic) -> None:
    topic, observer = make_topic(TopicType.PRIORITY, max_retries=0), Session()
    seen: list[str] = []

    async def main() -> None:
        async with aio.RmqClient(redis_url) as client:
            client.observers.all.append(observer)

            @client.listener(topic, concurrency=3)
            async def handle(delivery: aio.Delivery) -> None:
                await asyncio.sleep(0)
                seen.append(f"{delivery.text} in {session.get()}")
                if delivery.text == "bad":
                    raise ValueError("no")

            contents = ["bad", *(f"m{number}" for number in range(8))]
            await (await client.producer(topic)).send_many(PriorityMessage(each, 1) for each in contents)
            await client.start()
            inspection = await client.inspect(topic)
            while (stats := await inspection.stats()).total("acked") + stats.dead < 9:
                await asyncio.sleep(0.01)

    asyncio.run(main())
    assert sorted(seen) == sorted(f"{each} in session of {each}" for each in ("bad", *(f"m{n}" for n in range(8))))
    good = [f"commit m{number} in session of m{number}" for number in range(8)]
    assert sorted(observer.ended) == [*good, "rollback bad in session of bad for ValueError"]


def test_a_hook_that_is_a_coroutine_function_is_refused_in_threads(redis_url: str, make_topic: MakeTopic) -> None:
    with RmqClient(redis_url) as client:
        client.observers.all.append(Session())
        topic = make_topic(TopicType.PRIORITY, max_retries=0)
        assert handled_by(client, topic) == ["dead: InvalidValueError"]


@pytest.mark.parametrize("bad", ["ü", "a\0b", "x" * 2_049])
def test_a_trace_context_that_cannot_be_stored_is_not_sent(redis_url: str, make_topic: MakeTopic, bad: str) -> None:
    class Tracing(Observer):
        def __init__(self, trace: str) -> None:
            self._trace = trace

        @contextmanager
        def sending(self, topic: Topic, messages: int) -> Generator[str]:
            yield self._trace

    topic = make_topic(TopicType.PRIORITY)
    with RmqClient(redis_url) as client:
        client.observers.all += [Tracing("x" * 2_048), Tracing(bad)]
        client.producer(topic).send(PriorityMessage("a", 100, body=b"A"))
        with client.consumer(topic) as consumer:
            assert [(each.body, each.trace) for each in consumer.poll(1)] == [(b"A", "x" * 2_048)]
