"""Sends that wait while the backlog is full: topics with `WhenFull.BLOCK`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rmq._broker.broker import QueueBroker
from rmq._model.batches import EncodedMessage
from rmq._model.replies import PartlySent, SendResult
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic, WhenFull
from rmq.errors import BacklogFullError, FixedTimePassedError, RmqError

T = TypeVar("T")
Sleep = Callable[[float], None]
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1


def blocks(topic: Topic) -> bool:
    """Return whether sends to this topic wait for room."""
    return topic.when_full is WhenFull.BLOCK and topic.max_backlog is not None


def send_patiently(
    slots: QueueBroker,
    slot: int,
    messages: Sequence[EncodedMessage],
    sleep: Sleep,
    detailed: bool = False,
    *,
    each: bool = False,
) -> tuple[SendResult, RmqError | None]:
    """Store messages of one slot in order, in parts as space becomes free in the backlog.

    Args:
        slots: The topic; its `full_timeout` limits the wait since the last part that was stored.
        slot: Number of the slot.
        messages: The messages, of one slot, at most `MAX_BATCH`.
        sleep: Waits for a number of seconds.
        detailed: Also return per message whether it was new.
        each: Refuse messages whose time has passed individually: then the result is a `PartlySent`.

    Returns:
        The result of the stored messages, and the error because of which the others were not stored, or `None`.
    """
    timeout_s = slots.topic.full_timeout_s
    stored, size = SendResult(0, 0), len(messages)
    until_s, pause_s = monotonic_s() + timeout_s, _SHORTEST_PAUSE_S
    while (done := _done(stored)) < len(messages):
        part = messages[done : done + size]
        try:
            stored = add_up(stored, slots.send(slot, part, detailed, each=each))
        except BacklogFullError as full:
            if len(part) > 1:  # a part of it may fit, or merge
                size = max(1, min(full.room, len(part) - 1))
                continue
            if monotonic_s() >= until_s:
                return stored, _timed_out(full, timeout_s)
            sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except RmqError as error:
            if not (each and isinstance(error, FixedTimePassedError)):
                return stored, error
            refused, outcomes = dict.fromkeys(range(len(part)), "RMQ_PAST"), (False,) * len(part) if detailed else ()
            stored = add_up(stored, PartlySent(0, 0, outcomes, done=len(part), refused=refused))
        else:
            size, until_s, pause_s = len(messages), monotonic_s() + timeout_s, _SHORTEST_PAUSE_S
    return stored, None


def wait_for_room(send: Callable[[], T], timeout_s: float, sleep: Sleep) -> T:
    """Repeat a send until the backlog has room for all of its messages.

    Raises:
        BacklogFullError: The backlog had no room for `timeout_s`.
    """
    until_s, pause_s = monotonic_s() + timeout_s, _SHORTEST_PAUSE_S
    while True:
        try:
            return send()
        except BacklogFullError as full:
            if monotonic_s() >= until_s:
                raise _timed_out(full, timeout_s) from full
        sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def add_up(first: SendResult, second: SendResult) -> SendResult:
    """Combine the results of two sends, with the messages of the first one first."""
    total = SendResult(
        first.new + second.new,
        first.merged + second.merged,
        first.outcomes + second.outcomes,
        first.ids + second.ids,
        first.dropped + second.dropped,
    )
    done, refused = _done(first), dict(first.refused) if isinstance(first, PartlySent) else {}
    if isinstance(second, PartlySent):
        refused |= {done + place: code for place, code in second.refused.items()}
    if not refused:
        return total
    repeated = any(each.repeated for each in (first, second) if isinstance(each, PartlySent))
    parts = (total.new, total.merged, total.outcomes, total.ids, total.dropped)
    return PartlySent(*parts, done=done + _done(second), refused=refused, repeated=repeated)


def _done(result: SendResult) -> int:
    return result.done if isinstance(result, PartlySent) else result.accepted


def _timed_out(full: BacklogFullError, timeout_s: float) -> BacklogFullError:
    error = BacklogFullError(f"no room within {timeout_s:g} s: {full}", topic=full.topic, slot=full.slot)
    error.room = full.room
    return error
