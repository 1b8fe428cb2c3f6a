"""A real Redis with faults before it: each ends in recovery or in a clear error, and nothing is lost.

A lost reply may cost a second delivery, never a message; a consumer never gets stuck (pitfalls 1, 3, 7, 9, 25, 27).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import count

import pytest
import redis

from rmq import (
    Delivery,
    FixedTimeMessage,
    ImmediateRetry,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    Topic,
    TopicType,
)
from rmq.errors import MemoryFullError, RedisUnavailableError, ReplyLostError, RmqError, SendError
from tests.support.clients import drain, left_in, run_until, stats_of, texts
from tests.support.core import Message, default_scripts
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.sides import Side
from tests.support.waiting import LIMIT_S, wait_until

SECOND = timedelta(seconds=1)
TIMEOUT_S = 3.0
"""How long clients wait for a reply here."""

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server of our own: its scripts are flushed, its memory is full, it is killed.

    It writes each change to its AOF before it replies: that outlives its process, synced to disk or not.
    """
    with RedisServer(["appendonly yes", "appendfsync no"]) as server:
        yield server


_returns: list[tuple[threading.Event, threading.Thread]] = []
"""What brings replies back later, and an event that ends it; none of them may meet a proxy that has ended."""


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy
        while _returns:
            end, thread = _returns.pop()
            end.set()
            thread.join()


@pytest.fixture
def direct(server: RedisServer) -> Iterator[RmqClient]:
    """A client past the proxy, to see what is there."""
    with RmqClient(server.url) as client:
        yield client


@pytest.fixture
def client(proxy: Proxy, side: Side) -> Iterator[RmqClient]:
    """A client through the proxy."""
    with side.client(proxy.url, timeout_s=TIMEOUT_S, deadline_s=60.0) as client:
        yield client


@pytest.fixture
def topic(server: RedisServer, direct: RmqClient) -> Iterator[Topic]:
    """A topic with a lease of a second, in which nothing vanishes."""
    topic = Topic(f"fault{next(_numbers)}", TopicType.PRIORITY, slots=2, lease=SECOND, retry=ImmediateRetry())
    load_scripts(server)
    yield topic
    stats_of(direct, topic)


def load_scripts(server: RedisServer) -> None:
    """Load all scripts, so that a fault meets a script's reply and not the server's word that it lacks the script."""
    library = default_scripts()
    with redis.Redis(port=server.port) as raw:
        for name in library.names():
            raw.script_load(library.text(name))


def messages(number: int, prefix: str = "m") -> list[Message]:
    return [PriorityMessage(f"{prefix}{i}", 100) for i in range(number)]


def none_left(client: RmqClient, topic: Topic) -> Callable[[], bool]:
    return lambda: left_in(stats_of(client, topic))[:3] == (0, 0, 0)


# --- lost replies, one script at a time


def cut(proxy: Proxy) -> None:
    """The connection breaks before the reply."""
    proxy.cut_before_reply(command="EVALSHA")


def half(proxy: Proxy) -> None:
    """The connection breaks in the middle of the reply."""
    proxy.cut_after_bytes(3)


def swallowed(proxy: Proxy) -> None:
    """No reply comes, to none of the calls under way, for less time than the client waits."""
    before, end = proxy.dropped, threading.Event()
    proxy.drop_replies(command="EVALSHA")

    def bring_back() -> None:
        while proxy.dropped == before:
            if end.wait(0.005):
                return
        if not end.wait(TIMEOUT_S / 10):
            proxy.normal()

    thread = threading.Thread(target=bring_back)
    thread.start()
    _returns.append((end, thread))


FAULTS = (cut, half, swallowed)
each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
Fault = Callable[[Proxy], None]


@each_fault
def test_a_send_whose_reply_is_lost_is_repeated_and_merges(
    client: RmqClient, direct: RmqClient, proxy: Proxy, topic: Topic, fault: Fault
) -> None:
    producer = client.producer(topic)
    producer.send(PriorityMessage("warm", 100))
    fault(proxy)
    assert producer.send(PriorityMessage("a", 100)).accepted == 1
    fault(proxy)
    result = producer.send_many(messages(2_000))
    assert result.accepted == 2_000
    stats = stats_of(direct, topic)
    assert stats.backlog == 2_002
    assert stats.total("accepted") > 2_002  # some of them twice, and merged


@each_fault
def test_a_claim_whose_reply_is_lost_is_not_repeated_its_messages_come_back(
    client: RmqClient, direct: RmqClient, proxy: Proxy, topic: Topic, fault: Fault
) -> None:
    """Pitfall 1."""
    direct.producer(topic).send_many(messages(11))
    with client.consumer(topic) as consumer:
        [first] = consumer.poll(1, timeout=50)  # has subscribed and looked: a claim comes next
        assert first.ack()
        fault(proxy)
        found: list[Delivery] = []

        def poll() -> bool:
            deliveries = consumer.poll(100, timeout=0.1)
            late = consumer.ack(deliveries)  # on a busy machine the lease may end before: they come once more
            found.extend(delivery for delivery in deliveries if delivery not in late)
            return len({delivery.content for delivery in found}) == 10

        wait_until(poll)
    assert Counter(texts([first, *found])) == Counter({f"m{i}": 1 for i in range(11)})
    stats = stats_of(direct, topic)
    assert left_in(stats) == (0, 0, 0, 0)
    # none was claimed again before its lease had ended: each further attempt is a lease that has
    assert stats.total("expired") == sum(delivery.attempt - 1 for delivery in found) > 0


@each_fault
def test_an_ack_whose_reply_is_lost_is_told_and_not_repeated(
    client: RmqClient, direct: RmqClient, proxy: Proxy, topic: Topic, fault: Fault
) -> None:
    direct.producer(topic).send(PriorityMessage("a", 100))
    with client.consumer(topic) as consumer:
        [delivery] = consumer.poll(1, timeout=50)
        before = proxy.commands("EVALSHA")
        fault(proxy)
        with pytest.raises(ReplyLostError, match=r"reply to script settle on slot . of topic .* was lost"):
            delivery.ack()
        assert proxy.commands("EVALSHA") == before + 1
        proxy.normal()
        assert consumer.poll() == []  # it was carried out
    stats = stats_of(direct, topic)
    assert (left_in(stats), stats.total("acked")) == ((0, 0, 0, 0), 1)


def test_a_nack_whose_reply_is_lost_is_told_and_not_repeated(
    client: RmqClient, direct: RmqClient, proxy: Proxy, topic: Topic
) -> None:
    """It is sent by the script that acks, with which each fault was tried."""
    direct.producer(topic).send(PriorityMessage("a", 100))
    with client.consumer(topic) as consumer:
        [delivery] = consumer.poll(1, timeout=50)
        cut(proxy)
        with pytest.raises(ReplyLostError):
            delivery.nack(error="no")
        proxy.normal()
        [again] = consumer.poll(timeout=50)
        assert (again.attempt, again.ack()) == (2, True)
    assert stats_of(direct, topic).total("retried") == 1


def test_an_extension_whose_reply_is_lost(client: RmqClient, direct: RmqClient, proxy: Proxy, topic: Topic) -> None:
    """Its token may be another by now: so the ack may be stale, and then it is delivered again."""
    direct.producer(topic).send(PriorityMessage("a", 100))
    with client.consumer(topic) as consumer:
        [delivery] = consumer.poll(1, timeout=50)
        wait_until(lambda: time.time() % 1 < 0.2)  # the next second: surely another claim score
        cut(proxy)
        with pytest.raises(ReplyLostError):
            consumer.extend([delivery])
        proxy.normal()
        acked = delivery.ack()
        deliveries = consumer.poll(timeout=0 if acked else 5)
        assert len(deliveries) == (not acked)
        assert consumer.ack(deliveries) == []
    assert left_in(stats_of(direct, topic)) == (0, 0, 0, 0)


def test_a_listener_lives_through_lost_replies_of_every_kind(
    client: RmqClient, direct: RmqClient, proxy: Proxy, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    """Claims, the outcomes that ride on them, extensions and looks: nothing is lost, and nothing is acked twice."""
    seen: Counter[str] = Counter()

    @client.listener(topic, threads=2)
    def handle(delivery: Delivery) -> None:
        seen[delivery.text] += 1
        threading.Event().wait(0.002)

    direct.producer(topic).send_many(messages(600))
    ended = threading.Event()

    def disturb() -> None:
        for turn in range(12):  # and no more: an idle listener makes so few calls that each of them would be lost
            if ended.wait(0.3):
                return
            FAULTS[turn % 3](proxy)
            if turn % 4 == 3:
                proxy.cut_now()
        proxy.normal()

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        with caplog.at_level(logging.CRITICAL):
            client.start()
            wait_until(lambda: len(seen) == 600)
            thread.join()
            wait_until(none_left(direct, topic))
            client.stop()
    finally:
        ended.set()
        thread.join()
    stats = stats_of(direct, topic)
    assert (stats.dead, stats.total("acked")) == (0, 600)
    assert proxy.cuts > 0
    assert proxy.dropped > 0
    print(f"{sum(seen.values()) - 600} of 600 delivered again, {proxy.cuts} cuts, {proxy.dropped} swallowed")
    # what waited behind a handler that stood still was given back
    assert stats.total("delivered") == 600 + stats.total("expired") + stats.total("released")


@pytest.mark.parametrize("drop", [True, False], ids=["swallowed", "unreachable"])
def test_without_any_answer_it_gives_up_at_the_deadline(
    direct: RmqClient, proxy: Proxy, topic: Topic, drop: bool, side: Side
) -> None:
    """Pitfall 27: no wait without a deadline."""
    with side.client(proxy.url, timeout_s=0.2, deadline_s=0.4) as client:
        producer, consumer = client.producer(topic), client.consumer(topic)
        direct.producer(topic).send(PriorityMessage("a", 100))
        if drop:
            proxy.drop_replies()
        else:
            proxy.refuse_connections()
            proxy.cut_now()
        start = time.monotonic()
        with pytest.raises(RedisUnavailableError, match=r"no answer from Redis at .* within 0\.4 s"):
            producer.send(PriorityMessage("b", 100))
        with pytest.raises(SendError, match="0 messages stored") as caught:
            producer.send_many(messages(2_000))
        assert len(caught.value.unknown) + len(caught.value.not_stored) == 2_000
        assert caught.value.unknown
        with pytest.raises(RedisUnavailableError):
            client.topics()
        with pytest.raises(RedisUnavailableError):
            client.inspect(topic).stats()
        # a poll ends, too: nothing is due as far as one can know, or it says so
        with suppress(RedisUnavailableError):
            assert consumer.poll(timeout=0.5) == []
        assert time.monotonic() - start < 30
        proxy.normal()

        def recovered() -> bool:
            """Whether all goes through; this client waits for a moment only, so a pause of the machine is an outage."""
            try:
                assert producer.send_many(messages(10)).accepted == 10
                drain(consumer, 0.1)
            except RmqError:
                return False
            return none_left(direct, topic)()

        wait_until(recovered)


def test_of_a_batch_of_acks_each_slot_counts_for_itself(
    client: RmqClient, direct: RmqClient, proxy: Proxy, topic: Topic
) -> None:
    direct.producer(topic).send_many(messages(20))
    with client.consumer(topic) as consumer:
        found = consumer.poll(100, timeout=50)
        assert {delivery.slot for delivery in found} == {0, 1}
        assert found.pop().ack()  # the script is loaded
        cut(proxy)
        with pytest.raises(ReplyLostError):
            consumer.ack(found)
        stats = stats_of(direct, topic)  # both were carried out, of one we only do not know it
        assert (left_in(stats), stats.total("acked")) == ((0, 0, 0, 0), 20)


def test_a_listener_outlives_an_outage_longer_than_its_deadline(
    direct: RmqClient, proxy: Proxy, topic: Topic, caplog: pytest.LogCaptureFixture, side: Side
) -> None:
    """Pitfall 27: it goes on by itself, and sends the outcomes that it could not send."""
    seen: Counter[str] = Counter()
    with side.client(proxy.url, timeout_s=0.5, deadline_s=0.5) as client, caplog.at_level(logging.WARNING):

        @client.listener(topic, threads=2)
        def handle(delivery: Delivery) -> None:
            seen.update([delivery.text])

        client.start()
        for turn in range(2):
            direct.producer(topic).send_many(messages(100, f"m{turn}-"))
            caplog.clear()  # before the cut: an outage is told once
            proxy.refuse_connections()
            proxy.cut_now()
            wait_until(lambda: "no answer from Redis" in caplog.text)
            proxy.normal()
            wait_until(none_left(direct, topic), 60)
        client.stop()
    assert len(seen) == 200


def test_a_stop_during_an_outage_respects_its_limit(
    direct: RmqClient, proxy: Proxy, topic: Topic, caplog: pytest.LogCaptureFixture, side: Side
) -> None:
    begun: list[str] = []
    gate = threading.Event()

    def handle(delivery: Delivery) -> None:
        begun.append(delivery.text)
        assert gate.wait(100)

    direct.producer(topic).send_many(messages(20))
    with side.client(proxy.url, timeout_s=0.3, deadline_s=100.0) as client, caplog.at_level(logging.WARNING):
        client.listener(topic, threads=3)(handle)
        client.start()
        wait_until(lambda: len(begun) >= 2)
        proxy.refuse_connections()
        proxy.cut_now()
        start = time.monotonic()
        left = client.stop(0.5)
        assert time.monotonic() - start < 30
        assert len(left) >= len(begun)
        gate.set()
        proxy.normal()
    with direct.consumer(topic) as consumer:  # their leases bring all of them back
        wait_until(lambda: bool(drain(consumer, 0.1)) and none_left(direct, topic)())
    assert stats_of(direct, topic).total("acked") == 20


# --- delays


def test_random_delays_lose_nothing(side: Side, direct: RmqClient, proxy: Proxy, topic: Topic) -> None:
    """Pitfall 3: replies that take about as long as the client waits."""
    seen: Counter[str] = Counter()
    with side.client(proxy.url, timeout_s=0.4, deadline_s=60.0) as client:

        @client.listener(topic, batch=20, threads=2)
        def note(deliveries: list[Delivery]) -> None:
            seen.update(texts(deliveries))

        proxy.delay_replies(0.0, 0.42, seed=7)
        producer = client.producer(topic)
        client.start()
        assert producer.send_many(messages(300)).accepted >= 300
        wait_until(lambda: len(seen) == 300)
        proxy.normal()
        wait_until(none_left(direct, topic))
        client.stop()
    assert stats_of(direct, topic).dead == 0


def test_delayed_replies_deliver_neither_early_nor_twice(client: RmqClient, direct: RmqClient, proxy: Proxy) -> None:
    topic = Topic(f"fault{next(_numbers)}", TopicType.FIXED_TIME)
    now_ms = stats_of(direct, topic).slots[0].now_ms
    sent = [FixedTimeMessage(f"m{i}", fixed_time_ms=now_ms + 3_000 + 40 * i) for i in range(20)]
    direct.producer(topic).send_many(sent)
    proxy.delay_replies(0.05, 0.15, seed=3)
    found: list[Delivery] = []
    with client.consumer(topic) as consumer:
        while len(found) < 20:
            deliveries = consumer.poll(timeout=50)
            found += deliveries
            assert consumer.ack(deliveries) == []
    assert texts(found) == [f"m{i}" for i in range(20)]
    for delivery in found:
        assert delivery.due_ms is not None
        assert delivery.claimed_ms >= delivery.due_ms
    stats_of(direct, topic)


# --- the hints' connection


def test_a_cut_subscription_is_made_again(client: RmqClient, direct: RmqClient, proxy: Proxy, topic: Topic) -> None:
    """Pitfalls 25 and 27: what was sent while nobody listened is found at once by looking, later hints wake again."""
    producer = direct.producer(topic)
    with client.consumer(topic) as consumer:
        for i in range(2):
            assert consumer.poll(timeout=0.1) == []
            subscribed = proxy.commands("SUBSCRIBE")
            proxy.cut_now()
            producer.send(PriorityMessage(f"m{i}", 100))
            [delivery] = consumer.poll(timeout=50)
            assert delivery.ack()

            def again(subscribed: int = subscribed) -> bool:
                return consumer.poll(timeout=0.1) == [] and proxy.commands("SUBSCRIBE") > subscribed

            wait_until(again)


def test_a_subscription_that_is_refused_or_not_answered(
    client: RmqClient, direct: RmqClient, proxy: Proxy, topic: Topic
) -> None:
    producer = direct.producer(topic)
    proxy.drop_replies(command="SUBSCRIBE")
    with client.consumer(topic) as consumer:
        for i in range(2):
            producer.send(PriorityMessage(f"m{i}", 100))
            [delivery] = consumer.poll(timeout=50)
            assert delivery.ack()
            assert consumer.poll(timeout=0.1) == []
        proxy.normal()
        before = proxy.commands("SUBSCRIBE")
        wait_until(lambda: consumer.poll(timeout=0.1) == [] and proxy.commands("SUBSCRIBE") > before)


def test_a_line_that_went_silent_is_made_again(
    client: RmqClient, direct: RmqClient, proxy: Proxy, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-open: nothing breaks, nothing arrives."""
    monkeypatch.setattr("rmq._claiming.wakeups.PING_S", 0.1)
    monkeypatch.setattr("rmq._claiming.wakeups.PONG_S", 3.0)
    with client.consumer(topic) as consumer:
        wait_until(lambda: consumer.poll(timeout=0.1) == [] and proxy.commands("PING") > 2)
        assert proxy.commands("SUBSCRIBE") == 1  # answered pings: it stays
        proxy.drop_replies(command="SUBSCRIBE")
        wait_until(lambda: consumer.poll(timeout=0.1) == [] and proxy.commands("SUBSCRIBE") > 1)
        proxy.normal()
        direct.producer(topic).send(PriorityMessage("a", 100))
        [delivery] = consumer.poll(timeout=50)
        assert delivery.ack()


# --- Redis itself


def test_scripts_flushed_all_the_time(client: RmqClient, direct: RmqClient, server: RedisServer) -> None:
    """Pitfall 7: nothing was written, so every call is repeated, in its order."""
    topic = Topic(f"fault{next(_numbers)}", TopicType.PRIORITY, slots=2)
    stop = threading.Event()

    def flush() -> None:
        with server.connect() as admin:
            while not stop.wait(0.002):
                admin.script_flush()

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        seen: Counter[str] = Counter()
        client.listener(topic, threads=2)(lambda delivery: seen.update([delivery.text]))
        client.start()
        assert client.producer(topic).send_many(messages(3_000)).new == 3_000
        wait_until(none_left(direct, topic))
        client.stop()
    finally:
        stop.set()
        thread.join()
    assert set(seen.values()) == {1}
    assert len(seen) == 3_000


def test_redis_restarts_in_the_middle(
    client: RmqClient, direct: RmqClient, server: RedisServer, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    """All that was accepted is delivered, and the consumers find back by themselves."""
    seen: Counter[str] = Counter()
    client.listener(topic, threads=2)(lambda delivery: seen.update([delivery.text]))
    results: list[int] = []
    producing = threading.Thread(
        target=lambda: results.extend(client.producer(topic).send(message).accepted for message in messages(300))
    )
    with caplog.at_level(logging.CRITICAL):
        client.start()
        producing.start()
        for _ in range(2):
            known = len(seen)
            wait_until(lambda known=known: len(seen) > known + 50)
            server.kill()
            server.start()
        producing.join(LIMIT_S)
        assert results == [1] * 300
        wait_until(lambda: len(seen) == 300 and none_left(direct, topic)())
        client.stop()
    stats = stats_of(direct, topic)
    # a send whose reply the restart took away was repeated; the first one may have been acked by then
    assert stats.dead == 0
    assert 300 <= stats.total("acked") <= 302


def test_redis_frozen_for_a_while(
    client: RmqClient, direct: RmqClient, server: RedisServer, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    """Longer than clients wait and longer than the lease."""
    seen: Counter[str] = Counter()
    client.listener(topic, threads=2)(lambda delivery: seen.update([delivery.text]))
    with caplog.at_level(logging.CRITICAL):
        client.start()
        direct.producer(topic).send_many(messages(50))
        wait_until(lambda: seen)
        server.pause()
        threading.Event().wait(TIMEOUT_S + 0.5)
        server.resume()
        assert client.producer(topic).send_many(messages(50, "later")).accepted >= 50
        wait_until(lambda: len(seen) == 100 and none_left(direct, topic)())
        client.stop()
    assert stats_of(direct, topic).dead == 0


@pytest.fixture
def full(server: RedisServer, direct: RmqClient, topic: Topic) -> Iterator[int]:
    """Redis at its maxmemory, with messages in the topic; the value is how many."""
    number = 300
    direct.producer(topic).send_many(PriorityMessage(f"m{i}", 100, body="x" * 100) for i in range(number))
    with server.connect() as admin:
        used = int(admin.info("memory")["used_memory"])  # pyright: ignore[reportIndexIssue]
        admin.config_set("maxmemory", used - 100_000)
        yield number
        admin.config_set("maxmemory", 0)


def test_memory_full_refuses_sends_clearly_and_lets_consumers_drain(
    direct: RmqClient, server: RedisServer, topic: Topic, full: int, side: Side
) -> None:
    """Pitfall 9. Also a consumer that comes only now can start."""
    producer = direct.producer(topic)
    message = PriorityMessage("more", 100)
    with pytest.raises(MemoryFullError, match="at its maxmemory") as caught:
        producer.send(message)
    assert caught.value.not_stored == (message,)
    with pytest.raises(MemoryFullError) as caught:
        producer.send_many(messages(700, "many"))
    assert (caught.value.stored, len(caught.value.not_stored), caught.value.unknown) == (0, 700, ())
    with side.client(server.url) as late:
        with pytest.raises(MemoryFullError, match="did not define or change topic new"):
            late.consumer(Topic("new", TopicType.PRIORITY))
        assert late.change_topic(topic.changed(max_retries=17)).max_retries == 17
        found: list[str] = []
        with late.consumer(topic) as consumer:
            [first] = consumer.poll(1, timeout=50)
            assert first.nack(error="once more")  # a nack needs room, too
            [second] = consumer.poll(1)
            assert consumer.extend([second]) == []
            assert second.bury("hopeless")
            while deliveries := consumer.poll(50):
                assert consumer.ack(deliveries) == []
                found += texts(deliveries)
        assert len(set(found)) == full - 1
    assert left_in(stats_of(direct, topic)) == (0, 0, 0, 1)


def test_memory_full_does_not_stop_a_listener(
    direct: RmqClient, server: RedisServer, topic: Topic, full: int, side: Side
) -> None:
    seen: Counter[str] = Counter()

    def handle(delivery: Delivery) -> None:
        seen[delivery.text] += 1
        if delivery.attempt == 1 and int(delivery.text[1:]) % 10 == 0:
            raise ValueError("once more")

    with side.client(server.url) as client:
        client.listener(topic, threads=2)(handle)
        run_until(client, none_left(direct, topic))
    assert (len(seen), sum(seen.values())) == (full, full + full // 10)


def test_redis_comes_up_only_after_the_client(topic: Topic, server: RedisServer, side: Side) -> None:
    server.kill()
    with side.client(server.url, deadline_s=60.0) as client:
        results: list[int] = []
        sender = threading.Thread(
            target=lambda: results.append(client.producer(topic).send(PriorityMessage("a", 100)).new)
        )
        sender.start()
        server.start()
        sender.join(LIMIT_S)
        assert results == [1]
        with client.consumer(topic) as consumer:
            assert drain(consumer) == ["a"]


def test_merge_windows_end_though_every_hint_is_lost(proxy: Proxy, direct: RmqClient, side: Side) -> None:
    """Pitfall 25."""
    topic = Topic(f"fault{next(_numbers)}", TopicType.RANGE_MERGE, slots=4)
    proxy.drop_replies(command="SUBSCRIBE")
    seen: list[str] = []
    with side.client(proxy.url, timeout_s=TIMEOUT_S) as client:
        client.listener(topic)(lambda delivery: seen.append(delivery.text))
        client.start()
        direct.producer(topic).send_many(RangeMergeMessage(f"m{i}", time_range_ms=300) for i in range(20))
        wait_until(lambda: len(seen) == 20)
        client.stop()
    assert sorted(seen) == sorted(f"m{i}" for i in range(20))
