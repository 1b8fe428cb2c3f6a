"""Calls on several slots of a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from rmq._broker import control
from rmq._model.display import brief
from rmq._model.topics import Topic
from rmq._transport.call import Call, T
from rmq._transport.connections import Connections
from rmq._transport.exchange import raise_first
from rmq.errors import InvalidValueError

P = TypeVar("P")

ROUND_TRIP_SLOTS = 64
"""Slots called in one round trip."""


def checked_slots(topic: Topic, slots: Iterable[int] | None) -> tuple[int, ...]:
    """Return the given slots without duplicates; all slots for `None`.

    Raises:
        InvalidValueError: A slot that the topic does not have.
    """
    if slots is None:
        return tuple(range(topic.slots))
    if not isinstance(slots, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"slots is {brief(slots)}; it must be a list of slots, or None for all")
    chosen = list(slots)
    for slot in chosen:
        if type(slot) is not int or not 0 <= slot < topic.slots:
            raise InvalidValueError(f"slot {brief(slot)} is not one of topic {topic.name}: 0 to {topic.slots - 1}")
    return tuple(dict.fromkeys(chosen))


def call_slots(
    connections: Connections, places: Sequence[P], build: Callable[[P], Call[T]], *, finish_all: bool = False
) -> list[T]:
    """Run a call on each slot, `TRIP` of them in one round trip; return the replies in the order of the slots.

    Args:
        connections: The connections to Redis.
        places: The slots, or other arguments of `build`.
        build: Returns the call for one of them.
        finish_all: Make the later round trips even if an earlier one has failed.

    Raises:
        RmqError: The first error. The other slots of the same round trip were called.
    """
    replies_: list[Any] = []
    for first in range(0, len(places), ROUND_TRIP_SLOTS):
        replies = connections.run_many([build(place) for place in places[first : first + ROUND_TRIP_SLOTS]])
        if not finish_all:
            raise_first(replies)
        replies_ += replies
    raise_first(replies_)
    return replies_


def confirm_all(connections: Connections, topic: Topic) -> None:
    """Have the state of all slots confirmed, as the client's durability requires, before a step that reads first.

    Another client may just have removed what the step does not find, and that must be durable, too.

    Raises:
        DurabilityError: Too few replicas, or no disk, confirmed it in time.
    """
    if connections.confirms:
        call_slots(connections, range(topic.slots), lambda slot: control.confirm(topic, slot))


def call_in_parts(connections: Connections, build: Callable[[int], Call[list[T]]], number: int) -> list[T]:
    """Repeat a call whose reply may cover only the first arguments; `build` returns the call for the rest."""
    answers: list[T] = []
    while True:
        done = len(answers)
        answers += connections.run(build(done))
        if not done < len(answers) < number:
            return answers
