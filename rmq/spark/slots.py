"""A topic as Spark uses it: its definition, and the acks and renewals of a streaming query's batches in its slots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import ceil
from threading import Event
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeVar

from rmq._broker import claims
from rmq._broker.registry import Registry
from rmq._model.replies import NO_OWNER, Owner
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic, TopicType
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq._transport.dispatch import CONNECT_PATIENCE_S
from rmq.errors import FencedError, InvalidValueError, RedisUnavailableError
from rmq.spark import calls as spark_calls
from rmq.spark.calls import Driver

T = TypeVar("T")

WINDOW = 64
"""Most calls under way at once: they bound the memory, and keep the servers busy."""

PIECE = 4
"""Most acks or renewals under way at once. Each takes a millisecond or more of Redis, which works off what one client
has sent without a break: in between others have their turn."""


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
    """As `Settled`, of a batch, by slots.

    Attributes:
        found: Slot -> messages that the batch had claimed there.
        lost: How many others have taken.
        put_back: Slot -> messages that the last replay has put back.
        refused: How many the query has refused.
        done: Slot -> how many were acked or renewed.
        fenced: Slot -> epoch of the newer owner that has it.
    """

    found: dict[int, int]
    lost: int
    put_back: dict[int, int]
    refused: int
    done: dict[int, int]
    fenced: Mapping[int, int] = MappingProxyType({})

    def then(self, other: SettledBatch) -> SettledBatch:
        """Return this with what has come of the fenced slots in a second try."""
        return SettledBatch(
            self.found | other.found,
            self.lost + other.lost,
            self.put_back | other.put_back,
            self.refused + other.refused,
            self.done | other.done,
            {slot: epoch for slot, epoch in self.fenced.items() if slot not in other.found} | dict(other.fenced),
        )


class Pace:
    """Spreads the renewals of a batch over some time: one after the other, with breaths between, while that is in time.

    Args:
        renewals: How many there are.
        time_s: Time for them, in seconds. Half of it is for breaths: a server that is slow may take the rest.
        stopping: Ends the breaths, and what is left of the batch.
        least: Fewest under way at once. In a cluster `PIECE`: one call alone waits long for a master that is down.

    Attributes:
        piece: How many renewals are under way at once, `least` to `PIECE`: more where an answer takes long.
    """

    def __init__(self, renewals: int, time_s: float, stopping: Event, least: int = 1) -> None:
        self._renewals, self._half_s, self._stopping = renewals, time_s / 2, stopping
        self.piece = least
        self._pieces, self._busy_s, self._since_s = 0, 0.0, monotonic_s()

    def breathe(self) -> bool:
        """Wait behind a piece; return whether the rest is not needed."""
        self._pieces += 1
        self._busy_s += monotonic_s() - self._since_s
        mean_s = self._busy_s / self._pieces
        self.piece = min(PIECE, max(self.piece, ceil(self._renewals * mean_s / self._half_s)))
        stopped = self._stopping.wait(self._half_s / (self._renewals / self.piece + 1))
        self._since_s = monotonic_s()
        return stopped


class QuerySlots:
    """Acks and renews the batches of queries on one topic.

    Args:
        connections: Where the slots are.
        topic: The registered definition.

    Attributes:
        pace: Spreads the acks or renewals of the next batch; without it a piece follows the other.
    """

    def __init__(self, connections: Connections, topic: Topic) -> None:
        self._connections, self._topic = connections, topic
        self.pace: Pace | None = None

    def settle(
        self,
        driver: Driver,
        seq: int,
        chunks: Iterable[tuple[int, int]],
        verb: Literal["ack", "renew"],
        owners: Mapping[int, Owner] | None = None,
    ) -> SettledBatch:
        """Ack, or renew, (slot, chunk) parts of a batch. Safe to repeat.

        Args:
            driver: The query's driver.
            seq: Number of the batch.
            chunks: The parts.
            verb: What to do.
            owners: Who owns each of their slots; by default all that has an owner is an error.

        Raises:
            RmqError: The first that a part met; the others are done. With `owners` a slot of a newer owner is none.
        """
        known, fenced = owners or {}, None if owners is None else dict[int, int]()
        parts = (
            spark_calls.settle(self._topic, slot, driver, seq, chunk, verb, known.get(slot, NO_OWNER))
            for slot, chunk in chunks
        )
        lost = refused = 0
        found, put_back, done = dict[int, int](), dict[int, int](), dict[int, int]()
        for call, settled in self._each(parts, PIECE, fenced):
            lost += settled.lost
            refused += settled.refused
            found[call.slot] = found.get(call.slot, 0) + sum(settled)
            done[call.slot] = done.get(call.slot, 0) + settled.done
            if settled.put_back:
                put_back[call.slot] = put_back.get(call.slot, 0) + settled.put_back
        return SettledBatch(found, lost, put_back, refused, done, fenced or {})

    def tidy(self, owners: Mapping[int, Owner] | None = None) -> dict[int, int]:
        """Sweep what nobody holds any more in all slots, or in those of these owners.

        Returns:
            Slot -> epoch of the newer owner that has it.

        Raises:
            FencedError: Without `owners`: a slot has an owner through ZooKeeper.
        """
        swept = dict.fromkeys(range(self._topic.slots), NO_OWNER) if owners is None else owners
        fenced = None if owners is None else dict[int, int]()
        claim = claims.Claims(self._topic)
        parts = (claim(slot, 0, owner=owner) for slot, owner in swept.items())
        for _ in self._each(parts, WINDOW, fenced):
            pass
        return fenced or {}

    def _each(
        self, parts: Iterable[Call[T]], window: int, fenced: dict[int, int] | None = None
    ) -> Iterator[tuple[Call[T], T]]:
        """Carry out calls piece by piece, those for a server that does not answer after all others.

        Slots of newer owners go into `fenced`; without it they are errors.
        """
        errors: list[Exception] = []
        later: list[Call[T]] = []
        for calls in (parts, later):
            again = calls is later
            # of a server that is down, all calls at once: each piece would wait for it
            rest, pace = iter(calls), self.pace
            while piece := list(islice(rest, WINDOW if again else pace.piece if pace else window)):
                if not again:
                    piece, put_off = self._answered(piece)
                    later += put_off
                # the second time servers that are down are waited for, but only once
                brief = not again or any(isinstance(error, RedisUnavailableError) for error in errors)
                patience_s = CONNECT_PATIENCE_S if brief and all(call.repeatable for call in piece) else None
                for call, result in zip(piece, self._connections.run_many(piece, patience_s), strict=True):
                    if isinstance(result, RedisUnavailableError) and call.repeatable and not again:
                        later.append(call)
                    elif fenced is not None and isinstance(result, FencedError):
                        fenced[call.slot] = result.epoch
                    elif isinstance(result, Exception):
                        errors.append(result)
                    else:
                        yield call, result
                if pace is not None and pace.breathe():
                    return
        if errors:
            raise errors[0]

    def _answered(self, piece: list[Call[T]]) -> tuple[list[Call[T]], list[Call[T]]]:
        """Return the calls for servers that answer, and those that may wait for the others."""
        put_off: list[Call[T]] = []
        if self._connections.unresponsive_nodes:
            put_off = [call for call in piece if call.repeatable and self._connections.unresponsive(call.keys[0])]
            piece = [call for call in piece if not (call.repeatable and self._connections.unresponsive(call.keys[0]))]
        return piece, put_off
