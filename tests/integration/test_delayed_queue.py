"""The delayed queue: values come when they are due, and none is lost; see docs/guide/delayed.md."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from rmq import DelayedQueue, RmqClient, TopicType
from rmq.errors import (
    BacklogFullError,
    InvalidBatchError,
    InvalidMessageError,
    InvalidValueError,
    LeaseLostError,
    TopicMismatchError,
)
from tests.conftest import MakeTopic
from tests.support.delayed import play
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.sides import Side
from tests.support.waiting import LIMIT_S

MakeQueue = Callable[..., DelayedQueue]


@pytest.fixture
def make_queue(make_topic: MakeTopic, client: RmqClient, side: Side) -> Iterator[MakeQueue]:
    made: list[DelayedQueue] = []

    def make(**options: object) -> DelayedQueue:
        made.append(side.queue(client, make_topic(TopicType.FIXED_TIME).name, **options))  # pyright: ignore
        return made[-1]

    yield make
    for queue in made:
        queue.close()


def test_values_come_when_they_are_due(make_queue: MakeQueue) -> None:
    queue = make_queue()
    started = time.monotonic()
    queue.offer("late", timedelta(seconds=4.3))
    queue.offer("soon", "4s")
    queue.offer(b"now", "0s")
    assert queue.take() == b"now"
    assert queue.poll() is None
    assert queue.take(50.0) == b"soon"
    assert time.monotonic() - started >= 4.0
    assert queue.take(timedelta(seconds=50)) == b"late"
    assert time.monotonic() - started >= 4.3
    with pytest.raises(TimeoutError):
        queue.take(0.1)
    assert queue.poll(0.1) is None


def test_equal_values_are_two_elements_unless_they_merge(make_queue: MakeQueue) -> None:
    two, one = make_queue(), make_queue(merge=True)
    for queue in (two, one):
        queue.offer("same", "0s")
        queue.offer("same", "0s")
    assert (two.size(), len(one)) == (2, 1)
    assert [two.poll(50.0), two.poll(50.0), two.poll()] == [b"same", b"same", None]
    assert [one.poll(50.0), one.poll()] == [b"same", None]


def test_remove_size_and_iteration(make_queue: MakeQueue) -> None:
    for queue in (make_queue(slots=4), make_queue(slots=4, merge=True)):
        for value in ("a", "b", "c"):
            queue.offer(value, "1m")
        assert sorted(queue) == [b"a", b"b", b"c"]
        assert queue.remove("b")
        assert not queue.remove("b")
        assert (sorted(queue), queue.size()) == ([b"a", b"c"], 2)


def test_a_value_is_acked_when_the_block_ends(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.offer("a", "0s")
    with queue.taking(1.0) as value:
        assert (value, queue.size()) == (b"a", 0)
    assert queue.poll(0.1) is None
    with pytest.raises(TimeoutError), queue.taking(0.05):
        pass


def test_an_error_in_the_block_puts_it_back(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.offer("a", "0s")
    with pytest.raises(ZeroDivisionError), queue.taking(1.0):
        raise ZeroDivisionError
    assert queue.size() == 1
    assert queue.take(50.0) == b"a"


def test_a_process_that_dies_with_a_value_in_hand_loses_nothing(make_queue: MakeQueue) -> None:
    queue = make_queue(lease=timedelta(seconds=1))
    queue.offer("a", "0s")
    taking = queue.taking(50.0)
    assert taking.__enter__() == b"a"
    assert queue.take(50.0) == b"a"  # another one has it by the end of the lease
    with pytest.raises(LeaseLostError):
        taking.__exit__(None, None, None)


def test_what_is_wrong_is_refused(make_queue: MakeQueue, client: RmqClient, side: Side) -> None:
    queue = make_queue()
    for value in ("", 7):
        with pytest.raises(InvalidMessageError):
            queue.offer(value, "0s")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidValueError):
        queue.offer("a", timedelta(-1))
    with pytest.raises(InvalidValueError):
        queue.poll(-1)
    with pytest.raises(TopicMismatchError):
        side.queue(client, queue.topic.name, slots=2)
    with side.queue(client, queue.topic.name) as same:
        assert same.size() == 0


@pytest.mark.parametrize("merge", [False, True])
def test_a_refused_offer_names_what_was_offered(
    merge: bool, make_topic: MakeTopic, client: RmqClient, side: Side
) -> None:
    topic = client.producer(make_topic(TopicType.FIXED_TIME, max_backlog=1)).topic
    with side.queue(client, topic.name, merge=merge) as queue:
        queue.offer("a", "1m")
        with pytest.raises(BacklogFullError) as caught:
            queue.offer("b", timedelta(minutes=1))
    assert (caught.value.not_stored, caught.value.unknown) == ((("b", timedelta(minutes=1)),), ())


def test_threads_share_a_queue(make_queue: MakeQueue) -> None:
    queue = make_queue()
    taken: list[bytes] = []
    deadline_s = time.monotonic() + LIMIT_S

    def work() -> None:
        while len(taken) < 200 and time.monotonic() < deadline_s:
            taken.extend(filter(None, [queue.poll(1.0)]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(200):
        queue.offer(str(number), f"{number}ms")
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(str(number).encode() for number in range(200))


def test_a_fast_taker_claims_ahead_and_acks_together(
    redis_server: RedisServer, client: RmqClient, side: Side, make_topic: MakeTopic
) -> None:
    name = make_topic(TopicType.FIXED_TIME).name
    with side.queue(client, name) as sender:
        for number in range(300):
            sender.offer(str(number), "0s")
    with Proxy(redis_server.port) as proxy, side.client(proxy.url) as near, side.queue(near, name) as queue:
        assert {queue.take(50.0) for _ in range(300)} == {str(number).encode() for number in range(300)}
        assert proxy.commands("EVALSHA") < 200, "one claim and one ack a value would be 600"
    assert client.inspect(name).stats().total("acked") == 300


def offer_ten_take_two(queue: DelayedQueue) -> list[bytes]:
    """Offer ten values due at once and take two, the second claim takes more ahead; return the others, sorted."""
    for number in range(10):
        queue.offer(str(number), "0s")
    taken = {queue.take(50.0) for _ in range(2)}
    return sorted({str(number).encode() for number in range(10)} - taken)


def test_what_was_claimed_ahead_still_counts_as_in_the_queue(make_queue: MakeQueue, client: RmqClient) -> None:
    queue = make_queue()
    left = offer_ten_take_two(queue)
    assert (queue.size(), sorted(queue)) == (8, left)
    assert queue.remove(left[0])
    assert not queue.remove(left[0])
    assert queue.size() == 7
    assert client.inspect(queue.topic).stats().unaccounted == 0


def test_closing_gives_back_what_was_claimed_ahead(make_queue: MakeQueue, client: RmqClient) -> None:
    queue = make_queue()
    offer_ten_take_two(queue)
    queue.close()
    stats = client.inspect(queue.topic).stats()
    assert (stats.backlog, stats.in_flight, stats.total("acked"), stats.waiting) == (8, 0, 2, 0)


def test_closing_waits_for_acks_that_are_on_their_way(
    make_topic: MakeTopic, client: RmqClient, side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    with side.client(redis_url) as own:
        queue = side.queue(own, make_topic(TopicType.FIXED_TIME).name)
        queue.offer_many([(str(number), "0s") for number in range(3)])
        for _ in range(3):
            queue.take(50.0)
        with redis_server.connect() as admin:
            admin.execute_command("CLIENT", "PAUSE", 1_000, "ALL")  # longer than an ack waits for its neighbours
        time.sleep(0.3)
    assert client.inspect(queue.topic.name).stats().total("acked") == 3


def test_a_client_that_closes_closes_its_queues(
    make_topic: MakeTopic, client: RmqClient, side: Side, redis_url: str
) -> None:
    with side.client(redis_url) as own:
        queue = side.queue(own, make_topic(TopicType.FIXED_TIME).name)
        for number in range(50):
            queue.offer(str(number), "0s")
        for _ in range(30):
            queue.take(50.0)
    stats = client.inspect(queue.topic.name).stats()
    assert (stats.backlog, stats.in_flight, stats.total("acked")) == (20, 0, 30)


def test_a_slow_taker_does_not_sit_on_what_it_claimed_ahead(
    make_queue: MakeQueue, client: RmqClient, side: Side
) -> None:
    queue = make_queue()
    left = offer_ten_take_two(queue)
    with side.queue(client, queue.topic.name) as other:
        rest = [other.take(50.0) for _ in range(8)]  # long before any lease ends
    assert sorted(rest) == left
    assert queue.poll() is None


TAKER = """
import sys
from rmq import DelayedQueue, RmqClient
with RmqClient(sys.argv[1]) as client, DelayedQueue(client, sys.argv[2]) as queue:
    while True:
        with queue.taking() as value:
            print(value.decode(), flush=True)
"""


def test_a_killed_process_loses_nothing_of_what_it_claimed_ahead(make_queue: MakeQueue, redis_url: str) -> None:
    queue = make_queue(lease=timedelta(seconds=3))
    queue.offer_many((str(number), "0s") for number in range(500))
    with subprocess.Popen([sys.executable, "-c", TAKER, redis_url, queue.topic.name], stdout=subprocess.PIPE) as taker:
        assert taker.stdout is not None
        seen = [taker.stdout.readline().strip() for _ in range(50)]
        taker.kill()
        seen += taker.stdout.read().split()
    everything = {str(number).encode() for number in range(500)}
    while {*seen} != everything:
        seen.append(queue.take(LIMIT_S))
    assert len(seen) - len(set(seen)) <= 1, "only the one in hand, and not acked yet, may come again"


@pytest.mark.parametrize("count", [100])
def test_nothing_is_lost_where_replies_are_late(
    count: int, side: Side, redis_server: RedisServer, make_topic: MakeTopic
) -> None:
    """Pitfall 3: a client's timer equal to the time when a value is due, and replies delayed at random."""
    names = [make_topic(TopicType.FIXED_TIME).name for _ in range(3)]
    played = play(redis_server, names, count, (0.5, 1.5), side=side)
    assert (played.lost, played.again) == (0, 0)


def test_an_offer_over_a_slow_line_does_not_feel_its_way(
    side: Side, redis_server: RedisServer, make_topic: MakeTopic
) -> None:
    with Proxy(redis_server.port) as proxy, side.client(proxy.url) as client:
        with side.queue(client, make_topic(TopicType.FIXED_TIME).name) as queue:
            queue.offer("first", "0s")
            proxy.delay_replies(0.1)
            before = proxy.commands("EVALSHA")
            queue.offer("second", "1ms")
            assert proxy.commands("EVALSHA") - before <= 10  # two or three tries, and not one per 5 ms of the way
            proxy.normal()
            assert {queue.take(50.0), queue.take(50.0)} == {b"first", b"second"}


def test_an_offer_is_one_call_and_many_are_few(side: Side, redis_server: RedisServer, make_topic: MakeTopic) -> None:
    with Proxy(redis_server.port) as proxy, side.client(proxy.url) as client:
        for merge in (False, True):
            with side.queue(client, make_topic(TopicType.FIXED_TIME).name, merge=merge) as queue:
                queue.offer("first", "0s")
                before = proxy.commands("EVALSHA")
                queue.offer("second", "1m")
                assert proxy.commands("EVALSHA") - before == 1
                result = queue.offer_many((str(number), timedelta(minutes=number + 1)) for number in range(1_000))
                assert (result.new, result.merged) == (1_000, 0)
                assert proxy.commands("EVALSHA") - before <= 4
                assert (queue.offer_many([]).accepted, queue.size()) == (0, 1_002)
                assert next(iter(queue)) == b"first"


WRONG: dict[str, tuple[Any, str]] = {
    "delay": (("late", -1), "delay is -1"),
    "none": (("late", None), "delay is None; it must be a duration such as"),
    "number": (("late", 50), r"delay is 50: is it '50ms' or '50s'\?"),
    "value": ((7, "1m"), "value is 7; it must be str or bytes"),
    "surrogate": (("\ud800", "1m"), "cannot be written as UTF-8"),
    "pair": ("ab c", "'ab c' is not a pair of a value and its delay"),
    "empty": (("", "1m"), "has 0 bytes"),
    "long": (("x" * 70_000, "1m"), "has 70012 bytes"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_of_a_list_with_a_wrong_value_nothing_is_offered(make_queue: MakeQueue, wrong: str) -> None:
    queue, (value, says) = make_queue(), WRONG[wrong]
    values = [*((f"{number}", "1m") for number in range(5_000)), value]
    with pytest.raises(InvalidBatchError, match=f"^value 5001 of offer_many: .*{says}") as refused:
        queue.offer_many(values)
    assert (refused.value.stored, refused.value.not_stored, queue.size()) == (0, tuple(values), 0)


@pytest.mark.parametrize("merge", [False, True])
def test_of_a_list_with_a_value_that_is_too_long_for_its_topic_nothing_is_offered(
    client: RmqClient, make_topic: MakeTopic, side: Side, merge: bool
) -> None:
    topic = make_topic(TopicType.FIXED_TIME, max_content_bytes=100)
    client.producer(topic)  # registers it: the queue takes what is there
    with side.queue(client, topic.name, merge=merge) as queue:
        longest = ("x" * (100 if merge else 88), "1m")
        values = [*((f"{number}", "1m") for number in range(5_000)), longest]
        assert queue.offer_many(values).new == 5_001
        with pytest.raises(InvalidBatchError, match=r"^value 5002 of offer_many: .*it must have 1 to 100") as refused:
            queue.offer_many([*values, ("x" * 101, "1m")])
        assert (refused.value.stored, queue.size()) == (0, 5_001)
        with pytest.raises(InvalidMessageError, match=r"^delay is "):
            queue.offer("late", timedelta(-1))


@pytest.mark.parametrize("wrong", WRONG)
def test_of_a_stream_with_a_wrong_value_the_error_says_what_was_offered(make_queue: MakeQueue, wrong: str) -> None:
    queue, (value, says) = make_queue(), WRONG[wrong]
    good = [(f"{number}", "1m") for number in range(5_000)]
    with pytest.raises(InvalidBatchError, match=f"^value 5001 of offer_many: .*{says}") as refused:
        queue.offer_many(iter([*good, value, ("behind", "1m")]))
    stored, not_stored = refused.value.stored, refused.value.not_stored
    assert stored == queue.size()
    assert not_stored[-1] == value
    assert sorted([*(each.decode() for each in queue), *(each for each, _ in not_stored[:-1])], key=int) == [
        each for each, _ in good
    ]


def test_many_values_are_taken_at_once(make_queue: MakeQueue, client: RmqClient) -> None:
    queue = make_queue()
    queue.offer_many((f"{number}", "0s") for number in range(250))
    queue.offer("late", "1m")
    first = queue.take_many(100, 50.0)
    assert len(first) == 100
    rest = [queue.take(1.0)]
    while found := queue.take_many(timeout=0.0):
        assert len(found) <= 100
        rest += found
    assert sorted(first + rest, key=int) == [f"{number}".encode() for number in range(250)]
    queue.close()
    stats = client.inspect(client.topic(queue.topic.name)).stats()
    assert (stats.total("acked"), stats.backlog, stats.in_flight) == (250, 1, 0)


def test_values_that_are_due_together_come_in_the_order_of_their_offer(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.offer_many((f"{number}", "1m") for number in range(2_500))
    assert [int(value) for value in queue] == list(range(2_500))
    queue.offer_many((f"{number}", "0s") for number in range(500))
    found: list[bytes] = []
    while len(found) < 500:
        found += queue.take_many(100, 50.0)
    assert [int(value) for value in found] == list(range(500))


def test_a_batch_that_is_taken_is_bounded(make_queue: MakeQueue) -> None:
    queue = make_queue()
    for wrong in (0, 10_001, True, 1.5, "1"):
        with pytest.raises(InvalidValueError, match="max_values"):
            queue.take_many(wrong)  # pyright: ignore[reportArgumentType]
    queue.offer("a", "0s")
    assert queue.take_many(10_000, 1.0) == [b"a"]
    assert queue.take_many(1, 0.01) == []


def test_of_merged_values_the_last_offer_decides(make_queue: MakeQueue) -> None:
    queue = make_queue(merge=True)
    queue.offer("a", "1m")
    assert queue.offer_many([("b", "1m"), ("a", "0s")]).merged == 1
    assert queue.take(50.0) == b"a"
    queue.offer("b", "0s")
    assert queue.take(50.0) == b"b"
    with pytest.raises(InvalidValueError):
        queue.offer_many([("a", timedelta(-1))])
