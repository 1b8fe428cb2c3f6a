"""The slots of a topic as a streaming query changes them: the only caller of its scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

from rmq._model.messages import Encoded
from rmq._model.topics import Topic
from rmq._scripts import claiming
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq._transport.dispatch import CONNECT_PATIENCE_S
from rmq.errors import RedisUnavailableError, RmqError
from rmq.spark import calls as spark_calls
from rmq.spark.calls import Chunk, Driver, Entered, Mark, Once

T = TypeVar("T")

WINDOW = 64
"""Most calls under way at once: they bound the memory, and keep the servers busy."""


class SettledBatch(NamedTuple):
    """How an ack or a renewal of a batch went.

    Attributes:
        done: Messages acked or renewed.
        lost: Messages that others have taken meanwhile.
        put_back: Slot -> messages that its last replay has put back to the backlog, where there are any.
    """

    done: int
    lost: int
    put_back: dict[int, int]


class QuerySlots:
    """Reads, acks and renews the batches of one query on one topic.

    Args:
        connections: Where the slots are.
        topic: The registered definition.
        window: Most calls under way at once that settle or sweep.
    """

    def __init__(self, connections: Connections, topic: Topic, window: int = WINDOW) -> None:
        self._connections, self._window = connections, window
        self.topic = topic

    def enter(self, query: str, *, needed: bool = False) -> Entered:
        """Begin to drive a query: its earlier drivers are refused from now on; `needed`: only one that is known."""
        return self._connections.run(spark_calls.enter(self.topic, query, needed=needed))

    def submit_read(
        self,
        driver: Driver,
        seq: int,
        parts: Sequence[tuple[int, int, int, int]],
        *,
        size: int,
        max_replays: int,
        strict: bool,
    ) -> Callable[[], list[Chunk | RmqError]]:
        """Send the reading of (slot, chunk, limit, before) parts; the function returned waits for what they hold."""
        return self._connections.submit(
            [
                spark_calls.read(
                    self.topic,
                    slot,
                    driver,
                    seq,
                    chunk,
                    limit=limit,
                    before=before,
                    size=size,
                    max_replays=max_replays,
                    strict=strict,
                )
                for slot, chunk, limit, before in parts
            ]
        )

    def settle(
        self, driver: Driver, seq: int, chunks: Iterable[tuple[int, int]], verb: Literal["ack", "renew"]
    ) -> SettledBatch:
        """Ack, or renew, (slot, chunk) parts of a batch. Safe to repeat.

        Raises:
            RmqError: The first that a part met; the others are done.
        """
        parts = (spark_calls.settle(self.topic, slot, driver, seq, chunk, verb) for slot, chunk in chunks)
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
        for _ in self._each(claiming.claim(self.topic, slot, 0) for slot in range(self.topic.slots)):
            pass

    def _each(self, parts: Iterable[Call[T]]) -> Iterator[tuple[Call[T], T]]:
        """Carry out calls window by window, those for a server that does not answer after all others."""
        rest = iter(parts)
        later: list[Call[T]] = []
        error: Exception | None = None
        while window := list(islice(rest, self._window)):
            for call, result in self._carried_out(window, CONNECT_PATIENCE_S):
                if isinstance(result, RedisUnavailableError) and call.repeatable:
                    later.append(call)
                elif isinstance(result, Exception):
                    error = error or result
                else:
                    yield call, result
        for first in range(0, len(later), self._window):
            window = later[first : first + self._window]
            down = isinstance(error, RedisUnavailableError)  # it was waited for once
            for call, result in self._carried_out(window, CONNECT_PATIENCE_S if down else None):
                if isinstance(result, Exception):
                    error = error or result
                else:
                    yield call, result
        if error is not None:
            raise error

    def _carried_out(self, window: Sequence[Call[T]], patience_s: float | None) -> Iterator[tuple[Call[T], Any]]:
        if not all(call.repeatable for call in window):
            patience_s = None
        return zip(window, self._connections.run_many(window, patience_s), strict=True)


class MarkedWriter:
    """Sends chunks of a streaming query's batches, each once.

    Args:
        connections: Where the slots are.
        topic: The registered definition; it neither drops nor waits, and has no time to live if it is PRIORITY.
    """

    def __init__(self, connections: Connections, topic: Topic) -> None:
        self._connections = connections
        self.topic = topic

    def send_call(self, slot: int, messages: Sequence[Encoded], mark: Mark) -> Call[Once]:
        """Build the send of a chunk, for callers that keep several in flight."""
        return spark_calls.send_once(self.topic, slot, messages, mark)
