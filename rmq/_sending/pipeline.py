"""Sends batches to many slots: to each server a round at a time, and to each slot one batch after the other."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq._broker.keys import slot_keys
from rmq._model.batches import Batch
from rmq._model.topics import Topic
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq._transport.dispatch import Dispatch, wait_for_any
from rmq._transport.urls import Address
from rmq.errors import RmqError, ScriptFailedError

BATCH_BYTES = 1_048_576
"""A batch is sent before its contents and bodies grow beyond this."""

JOINED_MESSAGES, JOINED_SLOTS = 16, 32
"""Batches of at most so many messages share a call, so many at most: the server works off one call without a break."""

JOINED_BYTES = 65_536
"""A call that batches share is sent before their contents and bodies grow beyond this."""

QUEUED, QUEUED_BYTES = 50_000, 67_108_864
"""Most messages, and bytes, in full batches for servers that do not take them, while others take theirs."""


@dataclass(frozen=True, slots=True)
class RoundSize:
    """What one round trip carries at most, unless its first batch alone is larger.

    Attributes:
        messages: Messages.
        size_bytes: Their contents and bodies.
        calls: Script calls, each to another slot.
    """

    messages: int
    size_bytes: int
    calls: int = sys.maxsize


@dataclass(slots=True)
class Lane:
    """The batches for one server: they wait for no other server.

    Attributes:
        waiting: The batches of each slot, in the order of their slots' turns.
        number: Number of these batches.
        round: The batches that are under way, by the calls that they share.
        held: The batches of a round that is put together, or that was not sent since the round before it failed.
        failed: Whether a batch was not stored: none is sent behind it.
    """

    waiting: deque[deque[Batch]] = field(default_factory=deque["deque[Batch]"])
    number: int = 0
    round: list[list[Batch]] = field(default_factory=list["list[Batch]"])
    held: list[Batch] = field(default_factory=list["Batch"])
    dispatch: Dispatch | None = None
    failed: bool = False
    _of_slot: dict[int, deque[Batch]] = field(default_factory=dict["int", "deque[Batch]"])

    def add(self, batch: Batch) -> None:
        """Append a batch to those of its slot."""
        batches = self._of_slot.get(batch.slot)
        if batches is None:
            batches = self._of_slot[batch.slot] = deque()
            self.waiting.append(batches)
        batches.append(batch)
        self.number += 1

    def take_round(self, size: RoundSize) -> list[Batch]:
        """Take the next batch of each slot whose turn it is, as many as one round carries.

        A batch may be refused and repeated, whatever the cause: none of its slot may be under way behind it.
        """
        round_: list[Batch] = []
        again: list[deque[Batch]] = []
        messages, size_bytes = size.messages, size.size_bytes
        while self.waiting and len(round_) < size.calls:
            batches = self.waiting[0]
            batch = batches[0]
            if round_ and (len(batch) > messages or batch.size_bytes > size_bytes):
                break
            round_.append(batches.popleft())
            messages -= len(batch)
            size_bytes -= batch.size_bytes
            self.waiting.popleft()
            if batches:
                again.append(batches)
            else:
                del self._of_slot[batch.slot]
        self.waiting.extend(again)
        self.number -= len(round_)
        return round_

    def free(self) -> bool:
        """Take what has come of the round under way; return whether it is over."""
        return self.dispatch is None or self.dispatch.step()


class Pipeline:
    """Keeps one round of calls under way to each server, and puts the next together meanwhile. Not thread-safe.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        size: What a round carries.
        call: Returns the call that sends a batch.
        settle: Gets a batch with its call's result or error; returns whether more may be sent to its server.
        wait: Waits until this number of messages may be sent; all servers then share one lane.
        join: Returns a call that sends small batches to several slots of a server, and brings the result, or error, of
            each; `None` where each needs a call of its own.
    """

    def __init__(
        self,
        connections: Connections,
        topic: Topic,
        size: RoundSize,
        call: Callable[[Batch], Call[Any]],
        settle: Callable[[Batch, Any], bool],
        wait: Callable[[int], None] | None = None,
        join: Callable[[Sequence[Batch]], Call[list[Any]]] | None = None,
    ) -> None:
        self._connections, self._topic, self._size = connections, topic, size
        self._call, self._settle, self._wait, self._join = call, settle, wait, join
        self._lanes: dict[Address | None, Lane] = {}
        self._lane_of: dict[int, Lane] = {}  # fixed: none of a slot's batches may overtake another
        self._queued = self._queued_bytes = 0

    def queue(self, batch: Batch) -> Lane:
        """Append a batch to those that wait for its server."""
        lane = self._lane_of.get(batch.slot)
        if lane is None:
            key = slot_keys(self._topic.name, batch.slot).store
            server = None if self._wait is not None else self._connections.server_of(key)
            lane = self._lane_of[batch.slot] = self._lanes.setdefault(server, Lane())
        lane.add(batch)
        self._queued += len(batch)
        self._queued_bytes += batch.size_bytes
        return lane

    def send(self, lane: Lane) -> None:
        """Send the next round for this server, waiting for its previous one if necessary.

        Batches for other servers stay queued, up to the memory limit.
        """
        if lane.failed:
            return
        if len(self._lanes) == 1 or lane.free():
            self._send_round(lane)
        while (self._queued > QUEUED or self._queued_bytes > QUEUED_BYTES) and self._send_what_can_be_sent():
            pass

    def flush(self) -> None:
        """Send all that waits for servers on which nothing has failed."""
        while self._send_what_can_be_sent():
            pass

    def collect(self) -> None:
        """Wait for the rounds under way and settle them."""
        under_way = [lane.dispatch for lane in self._lanes.values() if lane.dispatch is not None]
        while len(under_way) > 1 and (under_way := [dispatch for dispatch in under_way if not dispatch.step()]):
            wait_for_any(under_way, self._connections.runtime)
        for lane in self._lanes.values():
            self._collect(lane)

    def close(self) -> None:
        """Wait for the rounds under way without settling them: no reply stays behind."""
        for lane in self._lanes.values():
            dispatch, lane.dispatch = lane.dispatch, None
            if dispatch is not None:
                dispatch.results()

    def unsent(self) -> Iterator[Batch]:
        """Yield the batches that were queued and not sent."""
        for lane in self._lanes.values():
            yield from lane.held
            for batches in lane.waiting:
                yield from batches

    def _send_what_can_be_sent(self) -> bool:
        """Send a round to each server that is free, or wait until one is; return whether anything was to be sent."""
        waiting = [lane for lane in self._lanes.values() if lane.waiting and not lane.failed]
        if len(self._lanes) == 1:
            free = waiting  # to collect waits for its round
        elif not (free := [lane for lane in waiting if lane.free()]):
            wait_for_any((lane.dispatch for lane in waiting if lane.dispatch is not None), self._connections.runtime)
        for lane in free:
            self._send_round(lane)
        return bool(waiting)

    def _send_round(self, lane: Lane) -> None:
        round_ = lane.take_round(self._size)
        messages = sum(len(batch) for batch in round_)
        self._queued -= messages
        self._queued_bytes -= sum(batch.size_bytes for batch in round_)
        lane.held = round_
        join = self._join
        groups = [[batch] for batch in round_] if join is None else grouped(round_)
        calls = [self._call(group[0]) if join is None or len(group) == 1 else join(group) for group in groups]
        self._collect(lane)  # only now: Redis worked while these batches were put together, and the order is kept
        if lane.failed:
            return
        if self._wait is not None:
            self._wait(messages)
        lane.round, lane.dispatch = groups, self._connections.dispatch(calls)
        lane.held = []

    def _collect(self, lane: Lane) -> None:
        if lane.dispatch is None:
            return
        (round_, results), lane.dispatch = (lane.round, lane.dispatch.results), None
        for group, result in zip(round_, results(), strict=True):
            for batch, each in zip(group, self._of_each(group, result), strict=True):
                if not self._settle(batch, each):
                    lane.failed = True

    def _of_each(self, group: Sequence[Batch], result: Any) -> Sequence[Any]:
        """Return the result, or error, of each batch of a call."""
        if len(group) == 1:
            return (result,)
        if isinstance(result, ScriptFailedError):
            # refused as a whole, before anything was stored: no right to the keys of one of the slots, for one
            return self._connections.run_many([self._call(batch) for batch in group])
        return [result] * len(group) if isinstance(result, RmqError) else result


def grouped(batches: Sequence[Batch]) -> list[list[Batch]]:
    """Put batches together that share a call: small ones, as far as one call may carry them; the order stays."""
    groups: list[list[Batch]] = []
    room_bytes = room = 0
    for batch in batches:
        small = len(batch) <= JOINED_MESSAGES and batch.size_bytes <= JOINED_BYTES
        if not small:
            groups.append([batch])
            room = 0
        elif room and batch.size_bytes <= room_bytes:
            groups[-1].append(batch)
            room, room_bytes = room - 1, room_bytes - batch.size_bytes
        else:
            groups.append([batch])
            room, room_bytes = JOINED_SLOTS - 1, JOINED_BYTES - batch.size_bytes
    return groups
