"""A plain consumer beside Spark: it shows that what it has in hand Spark has not, and the other way round."""

from __future__ import annotations

import threading
from contextlib import suppress

from rmq._claiming.consumer import Consumer
from rmq._model.messages import RangeMergeMessage
from rmq._model.topics import Topic
from rmq.client import RmqClient
from rmq.demo.spark.serial import Held
from rmq.errors import RmqError

_AT_ONCE = 20
_HOLD_S = 0.2


class Rival(threading.Thread):
    """Takes some customers, changes each again while it has them, and acks.

    Args:
        client: Where Redis is.
        topic: What it takes from.
        most: How many it takes; 0: it does nothing.
        window_ms: Merge window of the changes that it sends.
        others: Set when Spark has its first customers: the rival takes a few before, and the others beside it.

    Attributes:
        held: Whom it had, and when, by Redis' time.
    """

    def __init__(self, client: RmqClient, topic: Topic, most: int, window_ms: int, others: threading.Event) -> None:
        super().__init__(name="rmq-audience-rival", daemon=True)
        self._client, self._topic, self._most, self._window_ms = client, topic, most, window_ms
        self._others = others
        self._producer = client.producer(topic)
        self._inspection = client.inspect(topic)
        self._stopping = threading.Event()
        self.held: list[Held] = []

    def run(self) -> None:
        """Work until `most` were taken, until stopped, or until Redis is gone, which ends Spark's query, too."""
        with suppress(RmqError), self._client.consumer(self._topic) as consumer:
            while len(self.held) < self._most and not self._stopping.is_set():
                if not self.held or self._others.wait(_HOLD_S):
                    self._take(consumer)

    def _take(self, consumer: Consumer) -> None:
        deliveries = consumer.poll(max_messages=min(_AT_ONCE, self._most - len(self.held)), timeout=_HOLD_S)
        began_ms = self._now_ms()
        self._producer.send_many(RangeMergeMessage(each.content, self._window_ms) for each in deliveries)
        self._stopping.wait(_HOLD_S)
        ended_ms = self._now_ms()
        self.held += [Held(each.text, began_ms, ended_ms) for each in deliveries]
        consumer.ack(deliveries)

    def stop(self) -> None:
        """End when what is in hand is done."""
        self._stopping.set()
        self.join()

    def _now_ms(self) -> int:
        return self._inspection.stats([0]).now_ms
