"""What a handler leaves behind: no context variable for the next one, and nothing of a failed one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from rmq import Delivery, ImmediateRetry, Observer, PriorityMessage, RmqClient, Topic, TopicType, aio
from tests.conftest import MakeTopic
from tests.support.waiting import wait_until

SIDES = ["threads", "asyncio"]

left_behind: ContextVar[str] = ContextVar("left_behind", default="")
observed: ContextVar[str] = ContextVar("observed", default="")

Handler = Callable[[str], object]


class Watching(Observer):
    """Sets a variable around each handler, and notes how it finds it."""

    def __init__(self) -> None:
        self.before: list[str] = []
        self.after: list[str] = []

    @contextlib.contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        self.before.append(observed.get())
        token = observed.set(deliveries[0].text)
        left_behind.set("by an observer")
        try:
            yield
        finally:
            self.after.append(observed.get())
            observed.reset(token)


@contextlib.contextmanager
def at_work(side: str, url: str, topic: Topic, handler: Handler, *observers: Observer) -> Iterator[None]:
    """Let a listener handle a topic's messages, in a thread, or in an event loop of one."""
    if side == "threads":
        with RmqClient(url) as client:
            client.observers.all.extend(observers)
            client.listener(topic)(lambda delivery: handler(delivery.text))
            client.start()
            yield
        return
    ended = threading.Event()
    begun = threading.Event()

    async def main() -> None:
        async with aio.RmqClient(url) as client:
            client.observers.all.extend(observers)

            @client.listener(topic, concurrency=2)
            async def handle(delivery: aio.Delivery) -> None:
                await asyncio.sleep(0)
                try:
                    handler(delivery.text)
                finally:
                    await asyncio.sleep(0)

            await client.start()
            begun.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert begun.wait(60)
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("watched", [False, True])
def test_each_call_has_a_context_of_its_own(side: str, watched: bool, redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    seen: list[tuple[str, bool]] = []
    watching = Watching()

    def handle(text: str) -> None:
        seen.append((left_behind.get(), observed.get() == (text if watched else "")))
        left_behind.set(text)
        observed.set("by a handler")

    with RmqClient(redis_url) as client, at_work(side, redis_url, topic, handle, *[watching] * watched):
        client.producer(topic).send_many(PriorityMessage(f"m{number}", 1) for number in range(30))
        wait_until(lambda: client.inspect(topic).stats().total("acked") == 30)
    assert seen == [("by an observer" if watched else "", True)] * 30
    assert watching.before == [""] * 30 * watched


class Held:
    """Something large."""


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("watched", [False, True])
def test_nothing_of_a_failed_handler_is_kept(
    side: str, watched: bool, redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(TopicType.PRIORITY, retry=ImmediateRetry(), max_retries=0)
    monkeypatch.setattr(logging.getLogger("rmq.worker"), "disabled", True)  # pytest keeps tracebacks that are logged
    kept: list[weakref.ref[Held]] = []

    def handle(text: str) -> None:
        held: Any = Held()
        kept.append(weakref.ref(held))
        raise ValueError(text)

    gc.collect()
    gc.disable()
    try:
        with RmqClient(redis_url) as client, at_work(side, redis_url, topic, handle, *[Watching()] * watched):
            client.producer(topic).send_many(PriorityMessage(f"m{number}", 1) for number in range(30))
            wait_until(lambda: len(kept) == 30)
            wait_until(lambda: not any(each() for each in kept))
            wait_until(lambda: client.inspect(topic).stats().dead == 30)
    finally:
        gc.enable()
