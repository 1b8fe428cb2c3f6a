"""Two real clients that know a topic with different leases, since it was changed between their starts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import timedelta

import pytest

from rmq import Delivery, PriorityMessage, RmqClient, TopicType
from tests.conftest import MakeTopic, wait_until

SHORT_S, LONG_S = 4, 60


@pytest.mark.parametrize("first_s", [SHORT_S, LONG_S])
def test_a_lease_changed_on_a_running_topic_makes_no_overlap(
    first_s: int, redis_url: str, make_topic: MakeTopic
) -> None:
    """Handlers that take several of the shorter leases, in a process of each lease; both live and renew."""
    topic = make_topic(TopicType.PRIORITY, lease=timedelta(seconds=first_s))
    running, begun, overlaps = Counter[bytes](), Counter[bytes](), list[bytes]()
    lock, leave = threading.Lock(), threading.Event()

    def handle(delivery: Delivery) -> None:
        with lock:
            begun[delivery.content] += 1
            running[delivery.content] += 1
            if running[delivery.content] > 1:
                overlaps.append(delivery.content)
        leave.wait(100)
        with lock:
            running[delivery.content] -= 1

    with RmqClient(redis_url) as first, RmqClient(redis_url) as second:
        first.producer(topic).send_many(PriorityMessage(f"m{number}", 100) for number in range(3))
        first.listener(topic, threads=3)(handle)
        first.start()
        wait_until(lambda: len(begun) == 3)
        changed = topic.changed(lease=timedelta(seconds=SHORT_S + LONG_S - first_s))
        second.change_topic(changed)
        second.listener(changed, threads=3)(handle)
        second.start()
        second.producer(changed).send_many(PriorityMessage(f"n{number}", 100) for number in range(6))
        wait_until(lambda: len(begun) >= 6)
        time.sleep(2 * SHORT_S)  # nothing may happen meanwhile
        assert not overlaps
        leave.set()
        wait_until(lambda: len(begun) == 9 and not any(running.values()))
    assert not overlaps
    assert set(begun.values()) == {1}
