"""What was claimed ahead is handed out only while its lease holds, however long a process stood still."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

from rmq import Consumer, Delivery, Topic, TopicType
from rmq._claiming.prefetch import Prefetch
from rmq._io.backend import THREADS
from rmq._model.times import monotonic_s
from tests.support.claims import Claimed, claim_of

TOPIC = Topic("t", TopicType.FIXED_TIME, lease=timedelta(seconds=3600))
SCORE = 1_790_000_000_000_016


class ConsumerStub:
    """Gives out batches, one a poll."""

    topic = TOPIC

    def __init__(self, *batches: Sequence[Delivery]) -> None:
        self._batches = list(batches)
        self.released: list[bytes] = []

    def poll(self, most: int, timeout: float) -> Sequence[Delivery]:
        del most, timeout
        return self._batches.pop(0) if self._batches else []

    def release(self, deliveries: Sequence[Delivery]) -> None:
        self.released += [each.content for each in deliveries]

    def close(self) -> None:
        """End."""


class Nobody:
    settle = None

    def still_owner(self, delivery: Any) -> bool:
        raise AssertionError(delivery)


def delivery(content: bytes, left_s: float) -> Delivery:
    claimed = Claimed(content, 100, SCORE, None)
    return claim_of(TOPIC, claimed, lease_until_s=monotonic_s() + left_s, holder=Nobody()).delivery(0)


def test_what_a_poll_brings_after_its_lease_is_not_handed_out():
    ended, held = delivery(b"ended", -1.0), delivery(b"held", 3600.0)
    ahead = Prefetch(cast("Consumer", ConsumerStub([ended], [ended, held])), THREADS)
    assert ahead.next(monotonic_s() + 3600) == [held]
    assert ahead.next(monotonic_s()) == []
    ahead.close()


def test_what_nobody_takes_goes_back():
    consumer = ConsumerStub([delivery(b"first", 3600.0), delivery(b"second", 3600.0)])
    ahead = Prefetch(cast("Consumer", consumer), THREADS)
    (taken,) = ahead.next(monotonic_s() + 3600)
    assert taken.content == b"first"
    ahead.close()
    assert consumer.released == [b"second"]
