"""The scripts that send to topics that merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from zlib import crc32

from rmq._broker.binding import Bound, ages_of
from rmq._broker.keys import slot_keys
from rmq._io.wire import Argument
from rmq._model.merging import Collect, Merge, PriorityRule, Sliding
from rmq._model.messages import Encoded
from rmq._model.records import untraced
from rmq._model.replies import PartlySent, SendResult
from rmq._model.topics import Topic, WhenFull
from rmq._transport.call import Call
from rmq._transport.numbering import Turn, Turns

_MERGED = Bound("send_merged", durable="Sent again, each counts once more, unless both calls have the same `once=`")
_REFUSALS = {ord("2"): "RMQ_ITEMS", ord("3"): "RMQ_RANGE"}
"""Outcome of a message -> why it was refused."""


class MergedSends:
    """Builds the sends of one topic that merges. Thread-safe.

    Args:
        topic: The registered definition.
        turns: Numbers the calls.
    """

    def __init__(self, topic: Topic, turns: Turns) -> None:
        self._topic, self._turns = topic, turns
        self._settings = merge_args(topic)
        self._partly = (
            "-" if topic.when_full is WhenFull.BLOCK else "+"
        )  # who waits for room wants the others to wait, too

    def __call__(
        self,
        slot: int,
        messages: Sequence[Encoded],
        detailed: bool = False,
        turn: Turn | None = None,
        *,
        partly: bool = False,
    ) -> Call[SendResult]:
        """Build the send of up to `MAX_BATCH` messages of one slot.

        Args:
            slot: The slot.
            messages: What to send; of one slot.
            detailed: Say of each whether it was new.
            turn: What names the call for its repeats; by default it has a number of this client's own.
            partly: Whether it may be carried out in part: then it may answer with a `PartlySent`.
        """
        number, topic = len(messages), self._topic
        turn = turn or self._turns.draw(topic.name, slot)
        values, records = record_args(messages)
        args = _MERGED.args(
            lane=turn.lane,
            call=turn.number,
            floor=turn.floor,
            digest=_digest_of(messages) if turn.token is None else "",
            detailed=f"{int(detailed)}{self._partly if partly else ''}",
            number=number,
            lowest=lowest_of(topic, messages),
            values=values,
            messages=records,
            **self._settings,
        )

        def parse(reply: list[Any], turn: Turn = turn) -> SendResult:  # the call keeps its number open by that
            new, flags = int(reply[0]), reply[1]
            outcomes = tuple(flag == 49 for flag in flags) if detailed else ()
            if not flags or (len(flags) == number and not (b"2" in flags or b"3" in flags)):
                return SendResult(new, number - new, outcomes, dropped=int(reply[2]))
            refused = {index: _REFUSALS[flag] for index, flag in enumerate(flags) if flag in _REFUSALS}
            merged = len(flags) - len(refused) - new
            return PartlySent(new, merged, outcomes, dropped=int(reply[2]), done=len(flags), refused=refused)

        keys = _MERGED.keys(slot_keys(topic.name, slot))
        return Call(_MERGED.name, keys, args, parse, True, topic.name, slot, _MERGED.durable)


def _digest_of(messages: Sequence[Encoded]) -> str:
    """Return what tells the messages of a named call from others, by contents and values: times may be another."""
    digest = 0
    for message in messages:
        digest = crc32(untraced(cast("bytes", message.body)), crc32(message.content, digest))
    return f"{digest:x}"


def merge_args(topic: Topic) -> dict[str, Argument]:
    """Return how a topic merges, as the scripts that send to it take it, but for `lowest`."""
    merge = cast("Merge", topic.merge)
    collect = merge.reduce if isinstance(merge.reduce, Collect) else None
    window = merge.window
    return {
        "max_backlog": topic.max_backlog_per_slot,
        "kind": topic.type.value,
        "drop": int(topic.drops),
        "max_retries": topic.max_retries,
        "ttl": int(topic.ttl is not None and not topic.type.timed),
        **ages_of(topic),
        "highest": topic.priorities[1],
        "priority": PriorityRule(merge.priority).value,
        "window": merge.window_kind,
        "max_wait": window.max_wait_ms if isinstance(window, Sliding) else 0,
        "max_count": merge.max_count if isinstance(merge.max_count, int) else 0,
        "max_items": collect.max_items if collect else 0,
        "max_bytes": collect.max_bytes if collect else 0,
        "when_full": merge.overflow(topic.type).value,
    }


def record_args(messages: Sequence[Encoded]) -> tuple[int, list[Argument]]:
    """Return how many values the messages have, 1 where they are alike, and the messages as plan_sends takes them."""
    values: list[Argument] = [message.score for message in messages]
    records: list[Argument] = [cast("bytes", message.body) for message in messages]
    if values.count(values[0]) == len(values):
        del values[1:]
    if records.count(records[0]) == len(records):
        del records[1:]
    return len(values), [*[message.content for message in messages], *values, *records]


def lowest_of(topic: Topic, messages: Sequence[Encoded]) -> int:
    """Return the earliest fixed time of a batch, 0 on topics without."""
    return min(message.score for message in messages) if topic.type.value == "FIXED_TIME" else 0
