"""Who else works on the topics: senders, a plain consumer beside a query, and those who take what sinks send."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self

from rmq import FixedTimeMessage, PriorityMessage, RangeMergeMessage, RmqClient, StreamMessage, Topic, TopicType
from tests.support.core import Message

LEASE_S = 15
"""So long that a busy machine renews it in time, and so short that a rest can be longer."""

BREATH_S = 0.2


class Actor(ABC):
    """A thread that does its work again and again, from entering the context to leaving it.

    Args:
        url: Where Redis is; the thread has a client of its own.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
        self.error: BaseException | None = None

    @abstractmethod
    def work(self, client: RmqClient) -> Callable[[], None]:
        """Return what is done again and again."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if self.error is not None and error is None:
            raise self.error

    def stop(self) -> None:
        """End its work. Safe to repeat."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with RmqClient(self._url) as client:
                step = self.work(client)
                while not self._stop.is_set():
                    step()
        except BaseException as error:
            self.error = error


class Sender(Actor):
    """Sends messages, each content once, with priorities and times by lot.

    Args:
        url: Where Redis is.
        topics: Where to, in turn.
        chance: Decides.
        per_second: How many while it runs; `top_up` sends more at once.
    """

    def __init__(self, url: str, topics: Sequence[Topic], chance: random.Random, per_second: int) -> None:
        super().__init__(url)
        self._topics, self._chance, self._size = topics, chance, max(1, int(per_second * BREATH_S))
        self._lock = threading.Lock()
        self.sent: list[str] = []

    def work(self, client: RmqClient) -> Callable[[], None]:
        def send() -> None:
            self.top_up(client, self._size)
            self._stop.wait(BREATH_S)

        return send

    def top_up(self, client: RmqClient, number: int) -> None:
        """Send so many."""
        with self._lock:
            first = len(self.sent)
            contents = [f"m{first + n}" for n in range(number)]
            for place, topic in enumerate(self._topics):
                part = contents[place :: len(self._topics)]
                client.producer(topic).send_many([self._message(topic, content) for content in part])
            self.sent += contents

    def _message(self, topic: Topic, content: str) -> Message:
        if topic.type is TopicType.PRIORITY:
            return PriorityMessage(content, self._chance.randint(1_000, 9_000), body=f"body of {content}")
        if topic.type is TopicType.FIXED_TIME:
            return FixedTimeMessage(content, fixed_time_ms=int(time.time() * 1_000) + 1_500, body=f"body of {content}")
        if topic.type is TopicType.RANGE_MERGE:
            return RangeMergeMessage(content, time_range_ms=self._chance.choice((20, 400)), body=f"body of {content}")
        return StreamMessage(content, body=f"body of {content}")


@dataclass(frozen=True)
class Handled:
    """A delivery to the plain consumer.

    Attributes:
        at_s: When it was asked for, epoch seconds.
        deed: `ack`, `nack`, or `hold` where its lease was left to end.
    """

    at_s: float
    deed: str


class Rival(Actor):
    """A plain consumer on the topics that a query drains: acks most, nacks some, and lets some leases end.

    Args:
        url: Where Redis is.
        topics: Which topics.
        chance: Decides.
        nacks: Whether it may nack: a message that Spark has committed and that is nacked comes again.

    Attributes:
        deliveries: Content -> what was done with its deliveries, oldest first.
        eager: Whether it takes many at a time; else few.
    """

    def __init__(self, url: str, topics: Iterable[Topic], chance: random.Random, *, nacks: bool = True) -> None:
        super().__init__(url)
        self._topics, self._chance = list(topics), chance
        self._deeds = ["ack"] * 8 + ["hold"] + (["nack"] if nacks else [])
        self.deliveries: dict[str, list[Handled]] = defaultdict(list)
        self.eager = threading.Event()

    def work(self, client: RmqClient) -> Callable[[], None]:
        consumers = [client.consumer(topic) for topic in self._topics]

        def take() -> None:
            for consumer in consumers:
                asked_s = time.time()
                for delivery in consumer.poll(max_messages=60 if self.eager.is_set() else 3):
                    deed = self._chance.choice(self._deeds)
                    if deed == "ack":
                        deed = "ack" if delivery.ack() else "lost"
                    elif deed == "nack":
                        deed = "nack" if delivery.nack(delay=timedelta(seconds=2)) else "lost"
                    self.deliveries[delivery.text].append(Handled(asked_s, deed))
            self._stop.wait(BREATH_S if self.eager.is_set() else 5 * BREATH_S)

        return take

    def with_deed(self, deed: str) -> set[str]:
        """Return the contents with which it has done so at least once."""
        return {content for content, found in self.deliveries.items() if any(each.deed == deed for each in found)}


class Collector(Actor):
    """Takes all that comes to a topic, and counts.

    Attributes:
        found: How often each content came.
        values: Of a topic that sums: the sum of the values of each content.
        merged: Of a topic that sums: how many sends they stood for.
    """

    def __init__(self, url: str, topic: Topic) -> None:
        super().__init__(url)
        self._topic = topic
        self.found: Counter[str] = Counter()
        self.values: Counter[str] = Counter()
        self.merged: Counter[str] = Counter()

    def work(self, client: RmqClient) -> Callable[[], None]:
        consumer = client.consumer(self._topic)

        def take() -> None:
            for delivery in consumer.poll(max_messages=1_000, timeout=BREATH_S):
                self.found[delivery.text] += 1
                if self._topic.merge is not None:
                    self.values[delivery.text] += int(delivery.value)
                    self.merged[delivery.text] += delivery.merged
                delivery.ack()

        return take


class Cleaner(Actor):
    """Trims a STREAM topic now and then, and reads it as another group, whose entries it acks."""

    def __init__(self, url: str, topic: Topic, group: str) -> None:
        super().__init__(url)
        self._topic, self._group = topic, group
        self.found: Counter[str] = Counter()

    def work(self, client: RmqClient) -> Callable[[], None]:
        consumer = client.consumer(self._topic, group=self._group, start="all")
        stream = client.stream(self._topic)

        def clean() -> None:
            for delivery in consumer.poll(max_messages=1_000, timeout=2 * BREATH_S):
                self.found[delivery.text] += 1
                delivery.ack()
            stream.trim()

        return clean
