"""Consuming by push: outcomes, batches, leases, stopping, wake-ups, on both sides of the library."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import redis

from rmq import Delivery, ImmediateRetry, Listener, PriorityMessage, RangeMergeMessage, RmqClient, Topic, TopicType
from rmq.errors import InvalidValueError, LeaseLostError, RmqError
from tests.conftest import MakeTopic
from tests.support.clients import drain, left_in, stats_of, texts
from tests.support.core import HISTORY_LOCK_KEY, PrefetchSize, slot_keys
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

SECOND = timedelta(seconds=1)


@contextmanager
def listening(client: RmqClient, drain_s: float = 10.0) -> Iterator[None]:
    """The client's listeners at work."""
    client.start()
    try:
        yield
    finally:
        client.stop(drain_s)


def empty(client: RmqClient, topic: Topic) -> Callable[[], bool]:
    """Whether nothing is left but the dead."""
    return lambda: left_in(stats_of(client, topic))[:3] == (0, 0, 0)


class Gate:
    """A handler that waits inside until it is let through."""

    def __init__(self) -> None:
        self.begun: list[Delivery] = []
        self.ended: list[Delivery] = []
        self.open = threading.Event()

    def __call__(self, delivery: Delivery) -> None:
        self.begun.append(delivery)
        assert self.open.wait(100)
        self.ended.append(delivery)


# --- outcomes


def test_return_is_ack_and_an_exception_is_nack(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4, retry=ImmediateRetry())
    seen: Counter[str] = Counter()

    @client.listener(topic, threads=2)
    def handle(delivery: Delivery) -> None:
        seen[delivery.text] += 1
        if delivery.text == "m7" and delivery.attempt < 3:
            raise ValueError("not yet")

    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(200))
    with listening(client):
        wait_until(empty(client, topic))
    assert seen == Counter({f"m{i}": 3 if i == 7 else 1 for i in range(200)})
    stats = stats_of(client, topic)
    assert (stats.total("acked"), stats.total("retried"), stats.dead) == (200, 2, 0)
    assert handle.__name__ == "handle"


def test_a_handler_may_settle_by_itself(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)

    @client.listener(topic)
    def handle(delivery: Delivery) -> None:
        if delivery.text == "bury":
            assert delivery.bury("hopeless")
        elif delivery.text == "acked, then raises":
            assert delivery.ack()
            raise ValueError("too late to matter")
        elif delivery.attempt == 1:
            assert delivery.nack(delay="0s", error="once more")

    client.producer(topic).send_many(PriorityMessage(c, 100) for c in ("bury", "acked, then raises", "again"))
    with listening(client):
        wait_until(empty(client, topic))
    assert [dead.text for dead in client.dead(topic).list()] == ["bury"]
    assert stats_of(client, topic).total("acked") == 2


def test_seventeen_failures_then_dead_with_the_reason(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, retry=ImmediateRetry())
    attempts: list[int] = []

    @client.listener(topic)
    def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        raise LookupError(f"failed {delivery.attempt}")

    client.producer(topic).send(RangeMergeMessage("item:13", time_range_ms=1))
    with listening(client):
        wait_until(lambda: stats_of(client, topic).dead)
    assert attempts == list(range(1, 18))
    [dead] = client.dead(topic).list()
    assert (dead.attempts, dead.error_type, dead.error_message) == (17, "LookupError", "failed 17")


def test_even_sys_exit_does_not_end_a_worker(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, retry=ImmediateRetry())

    @client.listener(topic)
    def handle(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            sys.exit(3)

    client.producer(topic).send(PriorityMessage("a", 100))
    with listening(client):
        wait_until(empty(client, topic))
    assert stats_of(client, topic).total("acked") == 1


def test_a_batch_with_an_outcome_for_each_message(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, retry=ImmediateRetry())
    sizes: list[int] = []

    @client.listener(topic, batch=50)
    def handle(deliveries: list[Delivery]) -> None:
        sizes.append(len(deliveries))
        for delivery in deliveries:
            kind = int(delivery.text) % 4
            if kind == 0:
                delivery.ack()
            elif kind == 1:
                delivery.bury("odd")
            elif kind == 2 and delivery.attempt < 3:
                delivery.nack(delay="0s")
        # the rest, kind 3, is acked by the return

    client.producer(topic).send_many(PriorityMessage(f"{i}", 100) for i in range(400))
    with listening(client):
        wait_until(empty(client, topic))
    assert max(sizes) <= 50
    assert len(sizes) < 60
    stats = stats_of(client, topic)
    assert (stats.total("acked"), stats.total("retried"), stats.dead) == (300, 200, 100)


def test_a_batch_that_raises_fails_only_what_it_left_open(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, retry=ImmediateRetry())
    seen: Counter[str] = Counter()

    @client.listener(topic, batch=10)
    def handle(deliveries: list[Delivery]) -> None:
        seen.update(texts(deliveries))
        if deliveries[0].attempt == 1:
            for delivery in deliveries[:4]:
                delivery.ack()
            raise OSError("the picture server is gone")

    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(10))
    with listening(client):
        wait_until(empty(client, topic))
    assert sorted(seen.values()) == [1] * 4 + [2] * 6


@pytest.mark.parametrize(
    "options", [{"batch": 0}, {"batch": 10_001}, {"batch": 2.0}, {"threads": 0}, {"threads": 1_001}]
)
def test_options_out_of_range(client: RmqClient, make_topic: MakeTopic, options: dict[str, int]) -> None:
    with pytest.raises(InvalidValueError, match="whole number from 1"):
        client.listener(make_topic(TopicType.PRIORITY), **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidValueError):
        Listener(make_topic(TopicType.PRIORITY), print, **options)  # pyright: ignore[reportArgumentType]


def test_start_needs_a_listener_and_only_one_start(client: RmqClient, make_topic: MakeTopic) -> None:
    with pytest.raises(RmqError, match="no listener"):
        client.start()

    @client.listener(make_topic(TopicType.PRIORITY))
    def handle(delivery: Delivery) -> None: ...

    with listening(client), pytest.raises(RmqError, match="already running"):
        client.start()
    with listening(client):  # and again after a stop
        pass
    failed: list[str] = []

    def run() -> None:
        try:
            client.run()
        except RmqError as error:
            failed.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert "main thread" in failed[0]


# --- order and fairness


def test_highest_priority_first(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    seen: list[str] = []
    client.listener(topic)(lambda delivery: seen.append(delivery.text))
    client.producer(topic).send_many(PriorityMessage(f"p{p:03}", p) for p in range(20, 120))
    with listening(client):
        wait_until(empty(client, topic))
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize(("batch", "threads"), [(None, 1), (None, 3), (1, 1), (7, 2)])
def test_a_flooded_slot_does_not_starve_the_others(
    client: RmqClient, make_topic: MakeTopic, batch: int | None, threads: int
) -> None:
    """Also with a slow handler, which claims one message at a time."""
    topic = make_topic(TopicType.PRIORITY, slots=32)
    bases = {topic.slot_of(f"{i}".encode()): f"{i}" for i in range(1_000)}
    seen: list[int] = []
    unseen = threading.Event()

    @client.listener(topic, batch=batch, threads=threads)
    def handle(deliveries: Delivery | list[Delivery]) -> None:
        part = deliveries if isinstance(deliveries, list) else [deliveries]
        seen.extend(delivery.slot for delivery in part)
        unseen.wait(0.01 * len(part))

    producer = client.producer(topic)
    producer.send_many(PriorityMessage(f"flood{i}", 100, slot_basis=bases[7]) for i in range(5_000))
    with listening(client):
        wait_until(lambda: len(seen) > 20)
        producer.send_many(PriorityMessage(f"rare{slot}", 100, slot_basis=bases[slot]) for slot in range(32))
        sent = len(seen)
        wait_until(lambda: set(seen) == set(range(32)))
    assert max(map(seen.index, range(32))) < sent + 1_000
    drain(client.consumer(topic))


# --- leases


def test_handlers_that_take_longer_than_their_lease_keep_it(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, lease=4 * SECOND)
    permits = Gate()
    lost: list[Delivery] = []
    client.listener(topic, threads=8, on_lost=lost.append)(permits)
    client.producer(topic).send_many(PriorityMessage(f"slow{number}", 100) for number in range(8))
    with listening(client):
        wait_until(lambda: len(permits.begun) == 8)
        claimed_s = [delivery.claim_score // 1000 for delivery in permits.begun]
        with client.consumer(topic) as other:
            assert other.poll(timeout=6.0) == []
        renewed_s = [delivery.claim_score // 1000 for delivery in permits.begun]
        assert all(new > old + 1 for old, new in zip(claimed_s, renewed_s, strict=True))
        permits.open.set()
        wait_until(empty(client, topic))
    assert lost == []
    assert len(permits.ended) == 8
    assert stats_of(client, topic).total("acked") == stats_of(client, topic).total("delivered") == 8


def be_slow_after(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let listeners give back what waits behind a call that takes longer."""
    for module in ("rmq._listening.worker", "rmq.aio.listener"):
        monkeypatch.setattr(f"{module}.SLOW_S", seconds)


@pytest.fixture
def claims_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listeners claim eight messages at once, and keep them however slow their handler is."""
    monkeypatch.setattr(PrefetchSize, "messages", lambda *_: 8)
    be_slow_after(monkeypatch, 60.0)


@pytest.mark.usefixtures("claims_ahead")
def test_what_waits_behind_a_slow_handler_goes_to_others(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_slow_after(monkeypatch, 0.1)
    topic = make_topic(TopicType.PRIORITY)
    permits = Gate()
    client.listener(topic)(permits)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100 - i) for i in range(8))
    found: list[Delivery] = []
    with listening(client), client.consumer(topic) as other:
        wait_until(lambda: permits.begun)
        wait_until(lambda: found.extend(other.poll(timeout=0.5)) or len(found) == 7)
        assert {delivery.attempt for delivery in found} == {1}
        assert [delivery.priority for delivery in found] == list(range(99, 92, -1))
        assert other.ack(found) == []
        permits.open.set()
        wait_until(empty(client, topic))
    assert texts(permits.ended) == ["m0"]


@pytest.mark.usefixtures("claims_ahead")
def test_what_waits_behind_a_slow_handler_keeps_its_lease(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, lease=4 * SECOND)
    permits = Gate()
    client.listener(topic)(permits)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(8))
    with listening(client):
        wait_until(lambda: permits.begun)
        assert left_in(stats_of(client, topic)) == (0, 8, 0, 0)
        with client.consumer(topic) as other:
            assert other.poll(timeout=6.0) == []
        permits.open.set()
        wait_until(empty(client, topic))
    assert stats_of(client, topic).total("delivered") == 8


def take_lease_away(redis_client: redis.Redis, delivery: Delivery) -> None:
    """What a longer pause of this process, and another consumer, would do."""
    keys = slot_keys(delivery.topic.name, delivery.slot)
    redis_client.zadd(keys.prepare, {delivery.content: delivery.claim_score + 2_000})


def test_a_lost_lease_is_told_and_the_late_ack_changes_nothing(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Pitfall 31."""
    topic = make_topic(TopicType.PRIORITY, lease=SECOND)
    told: list[Delivery] = []
    raised: list[LeaseLostError] = []
    begun: list[Delivery] = []

    def lost(delivery: Delivery) -> None:
        told.append(delivery)
        raise ValueError("on_lost may fail, too")

    @client.listener(topic, on_lost=lost)
    def handle(delivery: Delivery) -> None:
        begun.append(delivery)
        if delivery.attempt == 1:
            wait_until(lambda: delivery.lost)
            assert not delivery.still_owner()
            try:
                delivery.raise_if_lost()
            except LeaseLostError as error:
                raised.append(error)

    client.producer(topic).send(PriorityMessage("a", 100))
    with caplog.at_level(logging.WARNING), listening(client):
        wait_until(lambda: begun)
        take_lease_away(redis_client, begun[0])
        wait_until(lambda: raised)
        wait_until(lambda: "outcomes were ignored, because the leases" in caplog.text)
        assert left_in(stats_of(client, topic))[1] == 1
        wait_until(lambda: len(begun) == 2 and empty(client, topic)())  # once that lease ends
    assert [(delivery.text, delivery.attempt) for delivery in told] == [("a", 1)]
    assert "on_lost of a listener on topic" in caplog.text
    assert stats_of(client, topic).total("acked") == 1


@pytest.mark.usefixtures("claims_ahead")
def test_what_lost_its_lease_while_it_waited_is_not_begun(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(TopicType.PRIORITY, lease=SECOND)
    permits = Gate()
    lost: list[Delivery] = []
    client.listener(topic, on_lost=lost.append)(permits)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100 - i) for i in range(3))
    with caplog.at_level(logging.WARNING), listening(client):
        wait_until(lambda: permits.begun)
        keys = slot_keys(topic.name, 0)
        for content in (b"m1", b"m2"):
            redis_client.zincrby(keys.prepare, 2_000, content)
        wait_until(lambda: {delivery.text for delivery in lost} == {"m1", "m2"})
        permits.open.set()
        wait_until(lambda: caplog.text.count("before a handler started: ") == 2)
        assert texts(permits.begun) == ["m0"]
        assert all(delivery.still_owner() is False for delivery in lost)
        wait_until(empty(client, topic))  # somebody had them; that lease ends
    assert sorted(texts(permits.ended)) == ["m0", "m1", "m2"]


# --- stopping


@pytest.mark.usefixtures("claims_ahead")
def test_stop_lets_handlers_finish_and_releases_at_once_what_was_not_begun(
    client: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    permits = Gate()
    client.listener(topic, threads=2)(permits)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 1_000 - i) for i in range(30))
    client.start()
    wait_until(lambda: len(permits.begun) == 2)
    assert stats_of(client, topic).in_flight > 2
    left: list[list[Delivery]] = []
    stopper = threading.Thread(target=lambda: left.append(client.stop(30)))
    stopper.start()
    # the others are back at once, though the handlers still run, and have all their retries
    wait_until(lambda: stats_of(client, topic).in_flight == 2)
    with client.consumer(topic) as other:
        found = other.poll()
        assert len(found) == 28
        assert {delivery.attempt for delivery in found} == {1}
        assert all(delivery.priority == 1_000 - int(delivery.text[1:]) for delivery in found)
        assert other.ack(found) == []
    assert stopper.is_alive()
    permits.open.set()
    stopper.join(10)
    assert left == [[]]
    assert len(permits.ended) == len(permits.begun) == 2
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)
    assert stats_of(client, topic).total("acked") == 30


def test_stop_respects_its_limit(client: RmqClient, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture) -> None:
    topic = make_topic(TopicType.PRIORITY)
    permits = Gate()
    client.listener(topic)(permits)
    client.producer(topic).send(PriorityMessage("stuck", 100))
    client.start()
    wait_until(lambda: permits.begun)
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert client.stop(0.3) == permits.begun
    assert 0.3 <= time.monotonic() - start < 30
    assert "1 delivery did not finish within 0.3 s; it is redelivered when the lease expires" in caplog.text
    permits.open.set()
    wait_until(empty(client, topic))  # the thread still sends its outcome


def test_stop_of_an_idle_listener_is_quick(client: RmqClient, make_topic: MakeTopic) -> None:
    client.listener(make_topic(TopicType.PRIORITY), threads=3)(print)
    client.start()
    assert client.stop(3_600) == []


def test_close_stops_what_still_runs(redis_url: str, client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    seen: list[str] = []
    before = threading.active_count()
    with RmqClient(redis_url) as other:
        other.listener(topic, threads=2)(lambda delivery: seen.append(delivery.text))
        other.start()
        client.producer(topic).send(PriorityMessage("a", 100))
        wait_until(lambda: seen)
    wait_until(lambda: threading.active_count() <= before)
    assert empty(client, topic)()


# --- waking up


def test_a_hint_wakes_an_idle_listener(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks here, neither worker nor watcher: only the hint can have done it."""
    for module in ("_listening.watcher", "_listening.worker", "aio.listener"):
        monkeypatch.setattr(f"rmq.{module}.LOOK_EVERY_S", 3600.0)
    topic = make_topic(TopicType.RANGE_MERGE, slots=64)
    arrived: list[str] = []
    client.listener(topic, threads=2)(lambda delivery: arrived.append(delivery.text))
    producer = client.producer(topic)
    with listening(client):
        producer.send(RangeMergeMessage("warm up", time_range_ms=1))
        wait_until(lambda: arrived)
        wait_until(empty(client, topic))
        for i in range(30):
            producer.send(RangeMergeMessage(f"m{i}", time_range_ms=1))
            wait_until(lambda i=i: arrived[-1] == f"m{i}")


def test_idle_and_without_hints_it_finds_by_looking(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    """Pitfall 25."""
    topic = make_topic(TopicType.PRIORITY, slots=4)
    seen: list[str] = []
    client.listener(topic)(lambda delivery: seen.append(delivery.text))
    with listening(client):
        client.producer(topic).send(PriorityMessage("a", 100))
        wait_until(lambda: seen)
        redis_client.zadd(slot_keys(topic.name, 3).store, {"quiet": 100})
        redis_client.hincrby(slot_keys(topic.name, 3).meta, "accepted", 1)
        wait_until(lambda: "quiet" in seen)


def test_an_idle_listener_of_64_slots_sends_fewer_than_five_commands_a_second(
    redis_server: RedisServer, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=64)
    with Proxy(redis_server.port) as proxy, RmqClient(proxy.url) as client:
        client.producer(topic).send_many(RangeMergeMessage(f"m{i}", timedelta(hours=1)) for i in range(1_000))
        client.listener(topic, threads=4)(print)
        never = threading.Event()

        def sent_in(seconds: float) -> int:
            before = proxy.commands()
            never.wait(seconds)
            return proxy.commands() - before

        def seconds_without_a_record() -> tuple[int] | None:
            """Return the commands of 2 s, or nothing if a minute was recorded meanwhile: its cost is counted below."""
            turn = redis_client.hget(HISTORY_LOCK_KEY, "minute")
            wait_until(lambda: sent_in(0.5) <= 2, 30, "the threads go to rest")
            sent = sent_in(2.0)
            return (sent,) if redis_client.hget(HISTORY_LOCK_KEY, "minute") == turn else None

        client.history().take_turn()  # so that the client does not
        with listening(client):
            wait_until(lambda: stats_of(client, topic).backlog == 1_000)
            (sent,) = wait_until(seconds_without_a_record)
        before = proxy.commands()
        client.inspect(topic).stats()  # what a record asks, once a minute, in one round trip
        recorded = proxy.commands() - before
    print(f"commands in 2 s: {sent}; once a minute: {recorded}")
    assert sent < 10
    assert sent / 2 + recorded / 60 < 5


def test_a_topic_without_the_right_to_its_channels_takes_no_hints_from_the_others(
    client: RmqClient, make_topic: MakeTopic, redis_server: RedisServer, redis_client: redis.Redis,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """All topics share a connection."""
    heard, unheard = make_topic(TopicType.PRIORITY, slots=4), make_topic(TopicType.PRIORITY, slots=4)
    channels = f"&wake{{{heard.name}_*"
    redis_client.execute_command("ACL", "SETUSER", "half", "on", ">pw", "~*", "resetchannels", channels, "+@all")
    try:
        seen: list[str] = []
        with RmqClient(f"redis://half:pw@127.0.0.1:{redis_server.port}") as half, caplog.at_level(logging.WARNING):
            for topic in (unheard, heard):
                half.listener(topic)(lambda delivery: seen.append(delivery.text))
            with listening(half):
                wait_until(lambda: f"topic {unheard.name} receives no wake hints" in caplog.text)
                client.producer(unheard).send(PriorityMessage("looked for", 100))
                wait_until(lambda: seen == ["looked for"])
                monkeypatch.setattr("rmq._listening.watcher.look", lambda *args: None)
                client.producer(heard).send(PriorityMessage("heard of", 100))
                wait_until(lambda: seen == ["looked for", "heard of"])
        assert caplog.text.count("receives no wake hints") == 1
    finally:
        redis_client.execute_command("ACL", "DELUSER", "half")


def test_without_the_right_to_the_wake_channels_it_works_by_looking(
    client: RmqClient, make_topic: MakeTopic, redis_server: RedisServer, redis_client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    topic = make_topic(TopicType.PRIORITY, slots=2)
    redis_client.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "resetchannels", "+@all", "-subscribe")
    try:
        seen: list[str] = []
        with RmqClient(f"redis://deaf:pw@127.0.0.1:{redis_server.port}") as deaf, caplog.at_level(logging.WARNING):
            deaf.listener(topic)(lambda delivery: seen.append(delivery.text))
            with listening(deaf):
                wait_until(lambda: "receives no wake hints" in caplog.text)
                client.producer(topic).send(PriorityMessage("a", 100))
                wait_until(lambda: seen == ["a"])
            with deaf.consumer(topic) as consumer:
                assert consumer.poll(timeout=0.1) == []
                client.producer(topic).send(PriorityMessage("b", 100))
                [delivery] = consumer.poll(timeout=50)
                assert delivery.ack()
        assert caplog.text.count("receives no wake hints") == 2  # not over and over
    finally:
        redis_client.execute_command("ACL", "DELUSER", "deaf")
