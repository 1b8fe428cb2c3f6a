"""A topic as Spark uses it: its definition, and the acks and renewals of a streaming query's batches in its slots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal, NamedTuple, TypeVar

from rmq._model.topics import Topic, TopicType
from rmq._scripts import claiming
from rmq._slots.registry import Registry
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq._transport.dispatch import CONNECT_PATIENCE_S
from rmq.errors import InvalidValueError, RedisUnavailableError
from rmq.spark import calls as spark_calls
from rmq.spark.calls import Driver

T = TypeVar("T")

WINDOW = 64
"""Most calls under way at once: they bound the memory, and keep the servers busy."""


def queue_topic(connections: Connections, name: str, no_stream: str) -> Topic:
    """Return a registered topic that is no STREAM.

    Args:
        connections: Where it is.
        name: Its name.
        no_stream: Why it must not be a STREAM.

    Raises:
        UnknownTopicError: Nobody has registered it.
        InvalidValueError: It is a STREAM.
    """
    topic = Registry(connections).get(name)
    if topic.type is TopicType.STREAM:
        raise InvalidValueError(f"topic {name} is STREAM: {no_stream}", topic=name)
    return topic


class SettledBatch(NamedTuple):
    """As `Settled`, of a batch: `put_back` has the slots with messages that the last replay has put back."""

    done: int
    lost: int
    put_back: dict[int, int]


class QuerySlots:
    """Acks and renews the batches of queries on one topic.

    Args:
        connections: Where the slots are.
        topic: The registered definition.
        window: Most calls under way at once.
    """

    def __init__(self, connections: Connections, topic: Topic, window: int = WINDOW) -> None:
        self._connections, self._topic, self._window = connections, topic, window

    def settle(
        self, driver: Driver, seq: int, chunks: Iterable[tuple[int, int]], verb: Literal["ack", "renew"]
    ) -> SettledBatch:
        """Ack, or renew, (slot, chunk) parts of a batch. Safe to repeat.

        Raises:
            RmqError: The first that a part met; the others are done.
        """
        parts = (spark_calls.settle(self._topic, slot, driver, seq, chunk, verb) for slot, chunk in chunks)
        done = lost = 0
        put_back: dict[int, int] = {}
        for call, settled in self._each(parts):
            done += settled.done
            lost += settled.lost
            if settled.put_back:
                put_back[call.slot] = put_back.get(call.slot, 0) + settled.put_back
        return SettledBatch(done, lost, put_back)

    def tidy(self) -> None:
        """Sweep what nobody holds any more in all slots, and refuse those that have owners.

        Raises:
            FencedError: A slot has an owner through ZooKeeper.
        """
        for _ in self._each(claiming.claim(self._topic, slot, 0) for slot in range(self._topic.slots)):
            pass

    def _each(self, parts: Iterable[Call[T]]) -> Iterator[tuple[Call[T], T]]:
        """Carry out calls window by window, those for a server that does not answer after all others."""
        errors: list[Exception] = []
        later: list[Call[T]] = []
        for calls in (parts, later):
            rest = iter(calls)
            while window := list(islice(rest, self._window)):
                # the second time servers that are down are waited for, but only once
                brief = calls is parts or any(isinstance(error, RedisUnavailableError) for error in errors)
                patience_s = CONNECT_PATIENCE_S if brief and all(call.repeatable for call in window) else None
                for call, result in zip(window, self._connections.run_many(window, patience_s), strict=True):
                    if isinstance(result, RedisUnavailableError) and call.repeatable and calls is parts:
                        later.append(call)
                    elif isinstance(result, Exception):
                        errors.append(result)
                    else:
                        yield call, result
        if errors:
            raise errors[0]
