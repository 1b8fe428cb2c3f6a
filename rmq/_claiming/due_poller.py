"""Polls the due times of slots, to find messages that hints and the replies of claims have missed."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence

from rmq._broker.broker import Broker
from rmq._broker.keys import slot_keys
from rmq._claiming.claim_plan import PATIENCE_S
from rmq._model.times import monotonic_s
from rmq._transport.connections import Connections
from rmq.errors import RedisUnavailableError, RmqError, ScriptFailedError

LOOK_SLOTS = 256
"""Most slots whose due times one script call reads."""

ROTATED_SLOTS = 8
"""Slots of a cluster that are checked at a time while hints arrive, so that idle consumers send few calls."""

DueTimes = tuple[Iterable[tuple[int, int]], int, float]
"""Slots with their due times, 0 for never; Redis' time in ms; time of sending the call, on the monotonic clock."""


class DuePoller:
    """Reads the due times of slots from Redis.

    Args:
        connections: The connections to the topic's servers.
        source: The broker of the topic's slots.

    Attributes:
        missed: Whether hints may have been missed since all slots were last checked.
    """

    def __init__(self, connections: Connections, source: Broker) -> None:
        self.missed = True
        self._connections = connections
        self._broker = source
        self._next = 0

    def parts(self, slots: int) -> int:
        """Return the number of parts in which `look` checks this number of slots of one server."""
        return 1 if self._connections.multi_node else max(1, -(-slots // LOOK_SLOTS))

    def look(self, slots: Sequence[int], at_all: bool, in_parts: bool = False) -> Iterator[DueTimes]:
        """Yield the due times of the next slots in turn; with `at_all`, of all slots.

        Errors are those of `ClaimPlanner.look`, raised after the last slot.
        """
        yield from self.look_at(self._in_turn(slots, at_all, in_parts))

    def look_at(self, slots: Sequence[int]) -> Iterator[DueTimes]:
        """Yield the due times of these slots. Raises as `look`."""
        failed: list[RmqError] = []
        for first in range(0, len(slots), LOOK_SLOTS):
            part = slots[first : first + LOOK_SLOTS]
            if not self._connections.multi_node:
                asked_s = monotonic_s()
                try:
                    now_ms, times = self._connections.run(self._broker.look_call(part))
                    yield zip(part, times, strict=True), now_ms, asked_s
                    continue
                except ScriptFailedError:  # one broken slot must not hide the others
                    pass
            failed += yield from self._look_one_by_one(part)
        if failed:
            self.missed = True
            raise failed[0]

    def _in_turn(self, slots: Sequence[int], at_all: bool, in_parts: bool) -> Sequence[int]:
        if at_all or self.missed or not (self._connections.multi_node or in_parts):
            self.missed = False
            return slots
        size = ROTATED_SLOTS if self._connections.multi_node else LOOK_SLOTS
        first, self._next = self._next % max(1, len(slots)), self._next + size
        return (*slots[first:], *slots[:first])[:size]

    def _look_one_by_one(self, slots: Sequence[int]) -> Generator[DueTimes, None, list[RmqError]]:
        """Yield the due times of slots of a cluster; return the errors if no node answers.

        Slots of an unresponsive node are omitted until it answers.
        """
        failed: list[RmqError] = []
        if self._connections.unresponsive_nodes:
            topic = self._broker.topic.name
            loud = [slot for slot in slots if not self._connections.unresponsive(slot_keys(topic, slot).store)]
            self.missed = self.missed or len(loud) < len(slots)
            slots = loud
        asked_s = monotonic_s()
        answers = self._connections.run_many([self._broker.look_call([slot]) for slot in slots], PATIENCE_S)
        for slot, answer in zip(slots, answers, strict=True):
            if isinstance(answer, RmqError):
                failed.append(answer)
            else:
                yield [(slot, answer[1][0])], answer[0], asked_s
        if len(failed) < len(slots) and all(isinstance(error, RedisUnavailableError) for error in failed):
            self.missed = self.missed or bool(failed)
            return []
        return failed
