"""The scripts that send."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, cast

from rmq._broker import streams
from rmq._broker.binding import Bound, ages_of
from rmq._broker.keys import slot_keys
from rmq._broker.merging import MergedSends
from rmq._io.wire import Argument
from rmq._model.columns import Columns
from rmq._model.messages import Encoded
from rmq._model.replies import SendResult
from rmq._model.scores import ages_for
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic, TopicType
from rmq._transport.call import Call
from rmq._transport.numbering import Turn, Turns

MERGES_AGAIN = (
    "Sending it again is safe: it merges with what is in the backlog; what was handled meanwhile is delivered once more"
)
"""What is durable and sent to topics without `merge=`, where the content is the message."""

OFFERED_AGAIN = "Offered again, a value is a second element, unless the queue has merge=True"
"""The same of a delayed queue, which tells equal values apart."""

_PRIORITY, _RANGE_MERGE, _FIXED_TIME, _DELAYED, _LIMITED, _AGED = (
    Bound(f"send_{kind}", durable=MERGES_AGAIN)
    for kind in "priority range_merge fixed_time delayed limited aged".split()
)


class SendCall(Protocol):
    """Builds the sends of a topic."""

    def __call__(
        self, slot: int, messages: Sequence[Encoded], detailed: bool = False, turn: Turn | None = None
    ) -> Call[SendResult]:
        """Build the send of up to `MAX_BATCH` messages of one slot.

        Args:
            slot: The slot.
            messages: What to send; of one slot.
            detailed: Say of each message whether it was new.
            turn: Topics that merge: what names the call for its repeats. Others need none: a repeat merges.
        """
        ...


def send_calls(topic: Topic, *, delayed: bool = False, turns: Turns | None = None) -> SendCall:
    """Return what builds the sends of a topic.

    Args:
        topic: The registered definition.
        delayed: FIXED_TIME, with delays in ms as scores.
        turns: Numbers the calls of a client to topics that merge; by default calls have numbers of their own.
    """
    if topic.type is TopicType.STREAM:
        return partial(_append, topic)
    if topic.merge is not None:
        return MergedSends(topic, turns or Turns())
    return _Sends(topic, delayed)


def _append(
    topic: Topic, slot: int, messages: Sequence[Encoded], detailed: bool = False, turn: Turn | None = None
) -> Call[SendResult]:
    del turn
    return streams.send(topic, slot, messages, detailed)


class _Sends:
    """Builds the sends of one topic: what is the same for all of them is worked out once."""

    def __init__(self, topic: Topic, delayed: bool) -> None:
        ages = topic.ttl is not None and not topic.type.timed
        self._topic = topic.name
        self._timed = topic.type.timed
        self._limited = topic.drops or ages
        self._settings: dict[str, Argument] = {"max_backlog": topic.max_backlog_per_slot}
        if self._limited:
            self._settings |= {
                "kind": "DELAYED" if delayed else topic.type.value,
                "drop": int(topic.drops),
                "max_retries": topic.max_retries,
                "ttl": int(ages),
                **ages_of(topic),
            }
            self._settings |= {} if self._timed else {"lowest": 0}
        elif topic.max_priority is not None:
            self._settings |= {**ages_of(topic), "mark": NO_MARK}
        self._single = self._settings if self._limited else {**self._settings, "values": 1}
        self._ages = MadeAges(topic) if not self._limited and topic.max_priority is not None else None
        self._durable = OFFERED_AGAIN if delayed else MERGES_AGAIN
        self._script = _LIMITED if self._limited else _DELAYED if delayed else _script_of(topic)

    def __call__(
        self, slot: int, messages: Sequence[Encoded], detailed: bool = False, turn: Turn | None = None
    ) -> Call[SendResult]:
        del turn
        script, number, limited = self._script, len(messages), self._limited
        settings, ages, built_ms = self._settings, self._ages, 0.0
        if number == 1:  # most sends: no columns for it
            _, content, lowest, body, _ = messages[0]
            flat: list[Argument] = [lowest, content] if body is None else [lowest, content, 1, body]
            settings = self._single
        else:
            columns = Columns.of(messages)
            scores = columns.scores
            lowest = min(scores) if self._timed else 0
            if limited:
                flat = message_args(columns)
            else:
                alike = scores.count(scores[0]) == number
                settings = {**settings, "values": 1 if alike else number}
                if ages is not None:
                    built_ms = monotonic_s() * 1_000
                    settings["mark"], scores = ages.made(scores[:1] if alike else scores, built_ms)
                flat = [scores[0], *columns.contents] if alike else _paired(scores, columns.contents)
                flat += _body_args(columns)
        if self._timed:
            args = script.args(detailed=int(detailed), number=number, messages=flat, lowest=lowest, **settings)
        else:
            args = script.args(detailed=int(detailed), number=number, messages=flat, **settings)

        def parse(reply: list[Any]) -> SendResult:
            new = int(reply[0])
            if ages is not None and built_ms:
                ages.took(reply[2], built_ms)
            outcomes = tuple(flag == 49 for flag in reply[1]) if detailed else ()
            return SendResult(new, number - new, outcomes, dropped=int(reply[2]) if limited else 0)

        keys = script.keys(slot_keys(self._topic, slot))
        return Call(script.name, keys, args, parse, True, self._topic, slot, self._durable)


NO_MARK = -1
"""Stands for the age mark of messages whose priorities are no scores yet."""


class MadeAges:
    """Makes scores of priorities with the age that their call will probably find, so that the script need not.

    The script's clock decides: it makes them again where the age is another one by then. How far that clock is ahead
    is known from the call before: with the time for which a call waits until it is carried out.
    """

    def __init__(self, topic: Topic) -> None:
        self._ages = ages_for(topic.max_priority)
        self._ahead_ms: float | None = None

    def made(self, priorities: Sequence[int], built_ms: float) -> tuple[int, Sequence[int]]:
        """Return the age mark and scores; as long as the clock is not known, `NO_MARK` and the priorities.

        Args:
            priorities: The priorities.
            built_ms: The time by `monotonic_s`, ms.
        """
        if self._ahead_ms is None:
            return NO_MARK, priorities
        mark = self._ages.mark_at(built_ms + self._ahead_ms)
        return mark, self._ages.aged(priorities, mark)

    def took(self, carried_out_ms: int, built_ms: float) -> None:
        """Note when a call was carried out by Redis' clock, and when it was built."""
        self._ahead_ms = carried_out_ms - built_ms


def _script_of(topic: Topic) -> Bound:
    if topic.type is TopicType.PRIORITY:
        return _PRIORITY if topic.max_priority is None else _AGED
    return _RANGE_MERGE if topic.type is TopicType.RANGE_MERGE else _FIXED_TIME


def message_args(messages: Sequence[Encoded]) -> list[Argument]:
    """Return messages as send_batch takes them: scores and contents, then index and body of those that have one."""
    columns = Columns.of(messages)
    return _paired(columns.scores, columns.contents) + _body_args(columns)


def _paired(scores: Sequence[int], contents: Sequence[bytes]) -> list[Argument]:
    args: list[Argument] = [0] * (2 * len(contents))
    args[::2], args[1::2] = scores, contents
    return args


def _body_args(columns: Columns) -> list[Argument]:
    args: list[Argument] = []
    for index, body in columns.bodied:
        args += (index + 1, body)
    return args


def lowest_of(args: Sequence[Argument], number: int) -> int:
    """Return the lowest score of so many messages in the form of `message_args`."""
    return min(cast("Sequence[int]", args[0 : 2 * number : 2]))
