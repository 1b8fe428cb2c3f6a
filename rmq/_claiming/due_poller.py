"""Polls the due times of slots, to find messages that hints and the replies of claims have missed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol, TypeVar

from rmq._broker.broker import Broker
from rmq._broker.claims import joined_looks
from rmq._broker.keys import slot_keys
from rmq._claiming.claim_plan import PATIENCE_S
from rmq._model.times import monotonic_s
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq.errors import RedisUnavailableError, RmqError, ScriptFailedError

LOOK_SLOTS = 256
"""Maximum number of slots whose due times one script call reads."""


class SlotWatch(Protocol):
    """The slots of a topic that are claimed from, with their due times: a `ClaimPlanner`.

    Attributes:
        broker: The broker of the slots.
        missed: Whether hints may have been missed since all slots were last checked.
    """

    broker: Broker
    missed: bool

    def learn_due(self, times: Sequence[tuple[int, int]], now_ms: int, asked_s: float) -> None:
        """Update the due times of slots.

        Args:
            times: Slots with their due times, 0 for never.
            now_ms: Redis' time.
            asked_s: Time at which the call was sent, on the clock of `monotonic_s`.
        """
        ...


W = TypeVar("W", bound=SlotWatch)
Places = Sequence[tuple[W, int]]
"""Slots of one topic or several."""


def look(connections: Connections, places: Places[W]) -> None:
    """Read the due times of slots, up to `LOOK_SLOTS` in a call of each script; in a cluster with one call per slot.

    Args:
        connections: The connections to the servers of the topics.
        places: The slots; those of one topic are adjacent.

    Raises:
        RedisUnavailableError: Redis did not answer until the deadline. In a cluster, no server answered.
        ScriptFailedError: A slot's data cannot be read; the other slots were checked.
    """
    failed: list[RmqError] = []
    for first in range(0, len(places), LOOK_SLOTS):
        failed += _look(connections, places[first : first + LOOK_SLOTS])
    if failed:
        raise failed[0]


def _look(connections: Connections, places: Places[W]) -> list[RmqError]:
    """Read the due times of slots; return the errors."""
    if connections.multi_node:
        return _look_one_by_one(connections, places)
    try:
        _look_joined(connections, places)
    except ScriptFailedError:  # one broken slot must not hide the others
        topics = [list(group) for _, group in groupby(places, key=itemgetter(0))]
        if len(topics) == 1:
            return _look_one_by_one(connections, places)
        return [error for each in topics for error in _look(connections, each)]
    return []


def _look_joined(connections: Connections, places: Places[W]) -> None:
    by_script: dict[str, list[tuple[W, list[int], Call[tuple[int, list[int]]]]]] = {}
    for watch, group in groupby(places, key=itemgetter(0)):
        slots = [slot for _, slot in group]
        call = watch.broker.look_call(slots)
        by_script.setdefault(call.script, []).append((watch, slots, call))
    for parts in by_script.values():
        asked_s = monotonic_s()
        now_ms, times = connections.run(joined_looks([call for _, _, call in parts]))
        due = iter(times)
        for watch, slots, _ in parts:
            watch.learn_due([(slot, next(due)) for slot in slots], now_ms, asked_s)


def _look_one_by_one(connections: Connections, places: Places[W]) -> list[RmqError]:
    """Read the due times of slots with one call each; return the errors if no node answers.

    Slots of an unresponsive node are omitted until it answers.
    """
    failed: list[RmqError] = []
    if connections.unresponsive_nodes:
        loud: list[tuple[W, int]] = []
        for watch, slot in places:
            if connections.unresponsive(slot_keys(watch.broker.topic.name, slot).store):
                watch.missed = True
            else:
                loud.append((watch, slot))
        places = loud
    asked_s = monotonic_s()
    answers: list[Any] = connections.run_many([watch.broker.look_call([slot]) for watch, slot in places], PATIENCE_S)
    for (watch, slot), answer in zip(places, answers, strict=True):
        if isinstance(answer, RmqError):
            failed.append(answer)
            watch.missed = True
        else:
            now_ms, [due_ms] = answer
            watch.learn_due([(slot, due_ms)], now_ms, asked_s)
    some = len(failed) < len(places) and all(isinstance(error, RedisUnavailableError) for error in failed)
    return [] if some else failed
