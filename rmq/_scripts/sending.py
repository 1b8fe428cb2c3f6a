"""The scripts that send."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, cast

from rmq._io.wire import Argument
from rmq._model.columns import Columns
from rmq._model.messages import Encoded
from rmq._model.replies import SendResult
from rmq._model.topics import Topic, TopicType
from rmq._scripts import streams
from rmq._scripts.binding import Bound, ages_of
from rmq._scripts.keys import slot_keys
from rmq._scripts.merging import MergedSends
from rmq._transport.call import Call
from rmq._transport.numbering import Turn, Turns

_PRIORITY, _RANGE_MERGE, _FIXED_TIME = Bound("send_priority"), Bound("send_range_merge"), Bound("send_fixed_time")
_DELAYED, _LIMITED, _AGED = Bound("send_delayed"), Bound("send_limited"), Bound("send_aged")


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
            self._settings |= ages_of(topic)
        self._single = self._settings if self._limited else {**self._settings, "values": 1}
        self._script = _LIMITED if self._limited else _DELAYED if delayed else _script_of(topic)

    def __call__(
        self, slot: int, messages: Sequence[Encoded], detailed: bool = False, turn: Turn | None = None
    ) -> Call[SendResult]:
        del turn
        script, number, limited = self._script, len(messages), self._limited
        settings = self._settings
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
                flat = shared_args(columns) if alike else message_args(columns)
                settings = {**settings, "values": 1 if alike else number}
        if self._timed:
            args = script.args(detailed=int(detailed), number=number, messages=flat, lowest=lowest, **settings)
        else:
            args = script.args(detailed=int(detailed), number=number, messages=flat, **settings)

        def parse(reply: list[Any]) -> SendResult:
            new = int(reply[0])
            outcomes = tuple(flag == 49 for flag in reply[1]) if detailed else ()
            return SendResult(new, number - new, outcomes, dropped=int(reply[2]) if limited else 0)

        keys = script.keys(slot_keys(self._topic, slot))
        return Call(script.name, keys, args, parse, True, self._topic, slot, True)


def _script_of(topic: Topic) -> Bound:
    if topic.type is TopicType.PRIORITY:
        return _PRIORITY if topic.max_priority is None else _AGED
    return _RANGE_MERGE if topic.type is TopicType.RANGE_MERGE else _FIXED_TIME


def message_args(messages: Sequence[Encoded]) -> list[Argument]:
    """Return messages as send_batch takes them: scores and contents, then index and body of those that have one."""
    columns = Columns.of(messages)
    args: list[Argument] = [0] * (2 * len(columns))
    args[::2], args[1::2] = columns.scores, columns.contents
    return args + _body_args(columns)


def shared_args(columns: Columns) -> list[Argument]:
    """Return messages of one score as `paired` takes them: the score, the contents, then index and body likewise."""
    return [columns.scores[0], *columns.contents, *_body_args(columns)]


def _body_args(columns: Columns) -> list[Argument]:
    args: list[Argument] = []
    for index, body in columns.bodied:
        args += (index + 1, body)
    return args


def lowest_of(args: Sequence[Argument], number: int) -> int:
    """Return the lowest score of so many messages in the form of `message_args`."""
    return min(cast("Sequence[int]", args[0 : 2 * number : 2]))
