"""The definition of a topic, and the acks and lease renewals of a streaming query's batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import ceil
from threading import Event
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeVar

from rmq import Owner, Topic, TopicType
from rmq.errors import FencedError, InvalidValueError, RedisUnavailableError
from rmq.spark import calls as spark_calls
from rmq.spark.calls import Driver, Settled
from rmq.spi import monotonic_s
from rmq.spi.scripts import NO_OWNER, Call, ClaimPart, Connections, Registry, queue_claims

T = TypeVar("T")

CONNECT_PATIENCE_S = 0.25
"""Seconds for which a brief call waits for a server that does not answer."""

WINDOW = 64
"""Maximum number of concurrent calls, which limits the memory and keeps the servers busy."""

PIECE = 4
"""Maximum number of concurrent acks or renewals. Each takes Redis a millisecond or more, and Redis executes the
pipeline of one client without a break; between the pieces it serves other clients."""


def queue_topic(connections: Connections, name: str, no_stream: str) -> Topic:
    """Return the definition of a registered topic; raise an error if it is a STREAM.

    Args:
        connections: Connections to Redis.
        name: Name of the topic.
        no_stream: The reason why it must not be a STREAM, for the error.

    Raises:
        UnknownTopicError: The topic is not registered.
        InvalidValueError: The topic is a STREAM.
    """
    topic = Registry(connections).get(name)
    if topic.type is TopicType.STREAM:
        raise InvalidValueError(f"topic {name} is STREAM: {no_stream}", topic=name)
    return topic


class SettledBatch(NamedTuple):
    """The result of an ack or renewal of a batch, by slot.

    Attributes:
        found: Slot -> number of messages that the batch had claimed there.
        lost: Number of messages that were claimed by other workers.
        put_back: Slot -> number of messages that the last replay returned to the backlog.
        refused: Number of messages that the query refused.
        done: Slot -> number of messages acked or renewed.
        fenced: Slot -> epoch of its newer owner.
    """

    found: dict[int, int]
    lost: int
    put_back: dict[int, int]
    refused: int
    done: dict[int, int]
    fenced: Mapping[int, int] = MappingProxyType({})

    def then(self, other: SettledBatch) -> SettledBatch:
        """Return this result combined with that of a second attempt in the fenced slots."""
        return SettledBatch(
            self.found | other.found,
            self.lost + other.lost,
            self.put_back | other.put_back,
            self.refused + other.refused,
            self.done | other.done,
            {slot: epoch for slot, epoch in self.fenced.items() if slot not in other.found} | dict(other.fenced),
        )


class Pace:
    """Spreads the renewals of a batch over the available time, with pauses, so that they do not block Redis.

    Args:
        renewals: Number of renewals.
        time_s: Time available, in seconds. Half of it is used for pauses; the rest is a reserve for a slow server.
        stopping: Event that ends the pauses and the remaining renewals.
        least: Minimum number of concurrent renewals; `PIECE` in a cluster, as a failed master delays a call.

    Attributes:
        piece: Number of concurrent renewals, `least` to `PIECE`; it grows if replies are slow.
    """

    def __init__(self, renewals: int, time_s: float, stopping: Event, least: int = 1) -> None:
        self._renewals, self._half_s, self._stopping = renewals, time_s / 2, stopping
        self.piece = least
        self._pieces, self._busy_s, self._since_s = 0, 0.0, monotonic_s()

    def breathe(self) -> bool:
        """Pause after a group of renewals; return True if the remaining ones should be skipped."""
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
        connections: Connections to Redis.
        topic: The registered definition.

    Attributes:
        pace: Spreads the renewals of the next batch; `None` for no pauses.
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
        """Ack chunks of a batch, or renew their leases. Safe to repeat.

        Args:
            driver: The query's driver.
            seq: Number of the batch.
            chunks: Pairs of slot and chunk number.
            verb: `ack` or `renew`.
            owners: Owners of the slots; by default, a slot with an owner is an error.

        Raises:
            RmqError: The first error, after all other chunks were processed. With `owners`, a newer owner is not an
                error.
        """
        known, fenced = owners or {}, None if owners is None else dict[int, int]()
        parts: Iterable[Call[Settled]] = (
            spark_calls.settle(self._topic, slot, driver, seq, chunk, verb, known.get(slot, NO_OWNER))
            for slot, chunk in chunks
        )
        lost = refused = 0
        found, put_back, done = dict[int, int](), dict[int, int](), dict[int, int]()
        while parts:
            unfinished: list[Call[Settled]] = []
            for call, settled in self._each(parts, PIECE, fenced):
                lost += settled.lost
                refused += settled.refused
                found[call.slot] = found.get(call.slot, 0) + sum(settled) - settled.more
                done[call.slot] = done.get(call.slot, 0) + settled.done
                if settled.put_back:
                    put_back[call.slot] = put_back.get(call.slot, 0) + settled.put_back
                if settled.more:
                    unfinished.append(call)
            parts = unfinished
        return SettledBatch(found, lost, put_back, refused, done, fenced or {})

    def tidy(self, owners: Mapping[int, Owner] | None = None) -> dict[int, int]:
        """Return expired leases to the backlog in all slots, or in the slots of these owners.

        Returns:
            Slot -> epoch of its newer owner, for slots that have one.

        Raises:
            FencedError: Without `owners`: a slot has an owner through ZooKeeper.
        """
        swept = dict.fromkeys(range(self._topic.slots), NO_OWNER) if owners is None else owners
        fenced = None if owners is None else dict[int, int]()
        claim = queue_claims(self._topic)
        parts = (claim([ClaimPart(slot, 0, owner=owner)]) for slot, owner in swept.items())
        for _ in self._each(parts, WINDOW, fenced):
            pass
        return fenced or {}

    def _each(
        self, parts: Iterable[Call[T]], window: int, fenced: dict[int, int] | None = None
    ) -> Iterator[tuple[Call[T], T]]:
        """Run calls in groups; calls to unresponsive servers come last.

        Slots with newer owners are added to `fenced`; if it is `None`, they are errors.
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
        """Return the calls to responsive servers, and those to unresponsive ones, which can wait."""
        put_off: list[Call[T]] = []
        if self._connections.unresponsive_nodes:
            put_off = [call for call in piece if call.repeatable and self._connections.unresponsive(call.keys[0])]
            piece = [call for call in piece if not (call.repeatable and self._connections.unresponsive(call.keys[0]))]
        return piece, put_off
