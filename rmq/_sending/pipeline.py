"""Sends batches to many slots: one round at a time per server, one batch at a time per slot."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq._broker.keys import slot_keys
from rmq._model.batches import Batch
from rmq._model.topics import Topic
from rmq._servers.urls import Address
from rmq._transport.call import Call
from rmq._transport.call_queue import CallQueue
from rmq._transport.connections import Connections
from rmq.errors import RmqError, ScriptFailedError

BATCH_BYTES = 1_048_576
"""Maximum bytes of contents and bodies in a batch."""

JOINED_MESSAGES, JOINED_SLOTS = 16, 32
"""Maximum number of messages in a batch that shares a call, and of batches in a call, which blocks the server."""

JOINED_BYTES = 65_536
"""Maximum bytes of contents and bodies in a call that batches share."""

QUEUED, QUEUED_BYTES = 50_000, 67_108_864
"""Maximum numbers of messages and bytes in batches that wait for busy servers while batches are sent to others."""


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """Limits of one round trip; its first batch alone may exceed them.

    Attributes:
        messages: Maximum number of messages.
        size_bytes: Maximum size of their contents and bodies.
        calls: Maximum number of script calls, each for a different slot.
    """

    messages: int
    size_bytes: int
    calls: int = sys.maxsize


@dataclass(slots=True)
class ServerQueue:
    """The batches for one server; they do not wait for other servers.

    Attributes:
        waiting: The batches of each slot, in the order of their slots' turns.
        number: Number of these batches.
        under_way: Number of its calls without a result.
        held: The batches of the round that is being built, or that was not sent because the previous one failed.
        failed: Whether a batch was not stored: no further batch is sent.
    """

    waiting: deque[deque[Batch]] = field(default_factory=deque["deque[Batch]"])
    number: int = 0
    under_way: int = 0
    held: list[Batch] = field(default_factory=list["Batch"])
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

    def take_round(self, size: RoundLimits) -> list[Batch]:
        """Take the next batch of each slot whose turn it is, as many as one round carries.

        A batch may be refused and repeated: no other batch of its slot may be under way after it.
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


class Pipeline:
    """Keeps one round of calls under way per server, and builds the next one meanwhile. Not thread-safe.

    Args:
        connections: The connections to the topic's servers.
        topic: The registered definition.
        size: Limits of one round.
        call: Returns the call that sends a batch.
        settle: Called with a batch and the result or error of its call; returns whether its server may get more.
        wait: Waits until this number of messages may be sent; with it, all servers share one queue.
        join: Returns a call that sends small batches to several slots of a server, with a result or an error for
            each; `None` if each batch needs a call of its own.
    """

    def __init__(
        self,
        connections: Connections,
        topic: Topic,
        size: RoundLimits,
        call: Callable[[Batch], Call[Any]],
        settle: Callable[[Batch, Any], bool],
        wait: Callable[[int], None] | None = None,
        join: Callable[[Sequence[Batch]], Call[list[Any]]] | None = None,
    ) -> None:
        self._connections, self._topic, self._size = connections, topic, size
        self._call, self._settle, self._wait, self._join = call, settle, wait, join
        self._calls: CallQueue[tuple[ServerQueue, list[Batch]]] = CallQueue(connections)
        self._queues: dict[Address | None, ServerQueue] = {}
        self._queue_of: dict[int, ServerQueue] = {}  # fixed: none of a slot's batches may overtake another
        self._queued = self._queued_bytes = 0

    def enqueue(self, batch: Batch) -> ServerQueue:
        """Queue a batch for its server."""
        queue = self._queue_of.get(batch.slot)
        if queue is None:
            key = slot_keys(self._topic.name, batch.slot).store
            address = None if self._wait is not None else self._connections.server_of(key)
            queue = self._queue_of[batch.slot] = self._queues.setdefault(address, ServerQueue())
        queue.add(batch)
        self._queued += len(batch)
        self._queued_bytes += batch.size_bytes
        return queue

    def send(self, queue: ServerQueue) -> None:
        """Send the next round for this server, waiting for its previous one if necessary.

        Batches for other servers stay queued, up to the memory limit.
        """
        if queue.failed:
            return
        if len(self._queues) > 1:
            self._take(0.0)
        if len(self._queues) == 1 or not (queue.under_way or queue.failed):
            self._send_round(queue)
        while (self._queued > QUEUED or self._queued_bytes > QUEUED_BYTES) and self._send_to_free_servers():
            pass

    def flush(self) -> None:
        """Send all queued batches, except those for servers on which a batch failed."""
        while self._send_to_free_servers():
            pass

    def collect(self) -> None:
        """Wait for the rounds under way, and process their results."""
        while self._take():
            pass

    def close(self) -> None:
        """Wait for the rounds under way and discard their results, so that no reply stays unread."""
        while self._calls.completions():
            pass

    def unsent(self) -> Iterator[Batch]:
        """Yield the batches that were queued and not sent."""
        for queue in self._queues.values():
            yield from queue.held
            for batches in queue.waiting:
                yield from batches

    def _send_to_free_servers(self) -> bool:
        """Send a round to each idle server, or wait until one is idle; return whether there was anything to send."""
        alone = len(self._queues) == 1  # its round is waited for once the next one is built
        if not alone:
            self._take(0.0)
        waiting = [queue for queue in self._queues.values() if queue.waiting and not queue.failed]
        free = [queue for queue in waiting if alone or not queue.under_way]
        for queue in free:
            self._send_round(queue)
        if waiting and not free:
            self._take()
        return bool(waiting)

    def _send_round(self, queue: ServerQueue) -> None:
        round_ = queue.take_round(self._size)
        messages = sum(len(batch) for batch in round_)
        self._queued -= messages
        self._queued_bytes -= sum(batch.size_bytes for batch in round_)
        queue.held = round_
        join = self._join
        groups = [[batch] for batch in round_] if join is None else grouped(round_)
        calls = [self._call(group[0]) if join is None or len(group) == 1 else join(group) for group in groups]
        while queue.under_way and self._take():  # only now: Redis worked while these batches were put together
            pass
        if queue.failed:
            return
        if self._wait is not None:
            self._wait(messages)
        for call, group in zip(calls, groups, strict=True):
            self._calls.submit(call, (queue, group))
        self._calls.flush()
        queue.under_way, queue.held = len(groups), []

    def _take(self, patience_s: float | None = None) -> bool:
        """Settle the batches of completed calls; return whether there were any. By default, wait for the first one."""
        completed = self._calls.completions(patience_s)
        for (queue, group), result in completed:
            queue.under_way -= 1
            for batch, outcome in zip(group, self._results_of(group, result), strict=True):
                if not self._settle(batch, outcome):
                    queue.failed = True
        return bool(completed)

    def _results_of(self, group: Sequence[Batch], result: Any) -> Sequence[Any]:
        """Return the result, or error, of each batch of a call."""
        if len(group) == 1:
            return (result,)
        if isinstance(result, ScriptFailedError):
            # refused as a whole, before anything was stored: no right to the keys of one of the slots, for one
            return self._connections.run_many([self._call(batch) for batch in group])
        return [result] * len(group) if isinstance(result, RmqError) else result


def grouped(batches: Sequence[Batch]) -> list[list[Batch]]:
    """Group small batches that may share a call, in order."""
    groups: list[list[Batch]] = []
    bytes_left = room = 0
    for batch in batches:
        small = len(batch) <= JOINED_MESSAGES and batch.size_bytes <= JOINED_BYTES
        if not small:
            groups.append([batch])
            room = 0
        elif room and batch.size_bytes <= bytes_left:
            groups[-1].append(batch)
            room, bytes_left = room - 1, bytes_left - batch.size_bytes
        else:
            groups.append([batch])
            room, bytes_left = JOINED_SLOTS - 1, JOINED_BYTES - batch.size_bytes
    return groups
