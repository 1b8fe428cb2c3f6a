"""The scripts that send: to one slot, to several in a call, and to topics that merge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, cast
from zlib import crc32

from rmq._broker import streams
from rmq._broker.binding import BoundScript, ages_of
from rmq._broker.keys import slot_keys
from rmq._io.wire import Argument
from rmq._model.batches import Batch, EncodedMessage
from rmq._model.merging import Collect, Merge, PriorityRule, Sliding
from rmq._model.records import untraced
from rmq._model.replies import PartlySent, SendResult
from rmq._model.scores import ages_for
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic, TopicType, WhenFull
from rmq._transport.call import Call
from rmq._transport.refusals import error_of
from rmq._transport.rpc_ids import RpcId, RpcIdAllocator
from rmq.errors import RmqError

MERGES_AGAIN = (
    "Sending it again is safe: it merges with what is in the backlog; what was handled meanwhile is delivered once more"
)
"""What is durable and sent to topics without `merge=`, where the content is the message."""

OFFERED_AGAIN = "Offered again, a value is a second element, unless the queue has merge=True"
"""The same of a delayed queue, which tells equal values apart."""

_PRIORITY, _RANGE_MERGE, _FIXED_TIME, _DELAYED, _LIMITED, _AGED = (
    BoundScript(f"send_{kind}", durable=MERGES_AGAIN)
    for kind in "priority range_merge fixed_time delayed limited aged".split()
)


class SendCall(Protocol):
    """Builds the sends of a topic."""

    def __call__(
        self, slot: int, messages: Sequence[EncodedMessage], detailed: bool = False, rpc_id: RpcId | None = None
    ) -> Call[SendResult]:
        """Build the send of up to `MAX_BATCH` messages of one slot.

        Args:
            slot: The slot.
            messages: What to send; of one slot.
            detailed: Also return for each message whether it was new.
            rpc_id: Topics that merge: id of the call, the same for its repeats. Others need none: a repeat merges.
        """
        ...


def send_calls(topic: Topic, *, delayed: bool = False, rpc_ids: RpcIdAllocator | None = None) -> SendCall:
    """Return the builder of a topic's sends.

    Args:
        topic: The registered definition.
        delayed: FIXED_TIME, with delays in ms as scores.
        rpc_ids: Source of the ids of calls to topics that merge; by default a new one.
    """
    if topic.type is TopicType.STREAM:
        return partial(streams.send, topic)
    if topic.merge is not None:
        return MergedSends(topic, rpc_ids or RpcIdAllocator())
    return QueueSends(topic, delayed)


class QueueSends:
    """Builds the sends of one topic. Arguments that are the same for all of them are computed once."""

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
        self._ages = PredictedAges(topic) if not self._limited and topic.max_priority is not None else None
        self._durable = OFFERED_AGAIN if delayed else MERGES_AGAIN
        self._fixed = topic.type is TopicType.FIXED_TIME and not delayed
        self._script = _LIMITED if self._limited else _DELAYED if delayed else _script_of(topic)

    def __call__(
        self,
        slot: int,
        messages: Sequence[EncodedMessage],
        detailed: bool = False,
        rpc_id: RpcId | None = None,
        *,
        partly: bool = False,
    ) -> Call[SendResult]:
        del rpc_id
        script, number, limited = self._script, len(messages), self._limited
        settings, ages, built_ms = self._settings, self._ages, 0.0
        if number == 1:  # most sends: no columns for it
            _, content, lowest, body, _ = messages[0]
            flat: list[Argument] = [lowest, content] if body is None else [lowest, content, 1, body]
            settings = self._single
        else:
            columns = Batch.of(messages)
            scores = columns.values
            lowest = min(scores) if self._timed else 0
            if limited:
                flat = message_args(columns)
            else:
                alike = scores.count(scores[0]) == number
                settings = {**settings, "values": 1 if alike else number}
                if ages is not None:
                    built_ms = monotonic_s() * 1_000
                    settings["mark"], scores = ages.predict(scores[:1] if alike else scores, built_ms)
                flat = [scores[0], *columns.contents] if alike else _paired(scores, columns.contents)
                flat += _body_args(columns)
        if self._timed:
            wanted: Argument = f"{int(detailed)}+" if partly and self._fixed and number > 1 else int(detailed)
            args = script.args(detailed=wanted, number=number, messages=flat, lowest=lowest, **settings)
        else:
            args = script.args(detailed=int(detailed), number=number, messages=flat, **settings)

        def parse(reply: list[Any]) -> SendResult:
            if ages is not None and built_ms:
                ages.observe(reply[2], built_ms)
            return _result_of(number, detailed, int(reply[0]), reply[1], int(reply[2]) if limited else 0)

        keys = script.keys(slot_keys(self._topic, slot))
        return Call(script.name, keys, args, parse, True, self._topic, slot, self._durable)


_REFUSALS = {ord("2"): "RMQ_ITEMS", ord("3"): "RMQ_RANGE", ord("4"): "RMQ_PAST"}
"""Outcome of a message -> why it was refused."""


def _result_of(number: int, detailed: bool, new: int, flags: bytes, dropped: int = 0) -> SendResult:
    """Return the result of a send.

    Args:
        number: How many messages were sent.
        detailed: Whether the caller asks for the outcome of each.
        new: How many of them were new.
        flags: The outcome of each, a digit; empty where nobody needs it, shorter where only the first ones were stored.
        dropped: How many messages were dropped.
    """
    outcomes = tuple(flag == 49 for flag in flags) if detailed else ()
    if not flags or (len(flags) == number and not (b"2" in flags or b"3" in flags or b"4" in flags)):
        return SendResult(new, number - new, outcomes, dropped=dropped)
    refused = {index: _REFUSALS[flag] for index, flag in enumerate(flags) if flag in _REFUSALS}
    merged = len(flags) - len(refused) - new
    return PartlySent(new, merged, outcomes, dropped=dropped, done=len(flags), refused=refused)


NO_MARK = -1
"""Stands for the age mark of messages whose priorities are no scores yet."""


class PredictedAges:
    """Computes scores of priorities with the age expected at the time of the call, so that the script need not.

    The clock of Redis decides: the script computes them again if the age differs. The difference of the clocks,
    including the time until a call is run, is known from the previous call.
    """

    def __init__(self, topic: Topic) -> None:
        self._ages = ages_for(topic.max_priority)
        self._ahead_ms: float | None = None

    def predict(self, priorities: Sequence[int], built_ms: float) -> tuple[int, Sequence[int]]:
        """Return the age mark and scores; `NO_MARK` and the priorities while the clock is unknown.

        Args:
            priorities: The priorities.
            built_ms: The time by `monotonic_s`, ms.
        """
        if self._ahead_ms is None:
            return NO_MARK, priorities
        mark = self._ages.mark_at(built_ms + self._ahead_ms)
        return mark, self._ages.aged(priorities, mark)

    def observe(self, carried_out_ms: int, built_ms: float) -> None:
        """Record when a call was run by the clock of Redis, and when it was built."""
        self._ahead_ms = carried_out_ms - built_ms


def _script_of(topic: Topic) -> BoundScript:
    if topic.type is TopicType.PRIORITY:
        return _PRIORITY if topic.max_priority is None else _AGED
    return _RANGE_MERGE if topic.type is TopicType.RANGE_MERGE else _FIXED_TIME


def message_args(messages: Sequence[EncodedMessage]) -> list[Argument]:
    """Return messages as arguments of send_batch: scores and contents, then index and body of those with a body."""
    columns = Batch.of(messages)
    return _paired(columns.values, columns.contents) + _body_args(columns)


def _paired(scores: Sequence[int], contents: Sequence[bytes]) -> list[Argument]:
    args: list[Argument] = [0] * (2 * len(contents))
    args[::2], args[1::2] = scores, contents
    return args


def _body_args(columns: Batch) -> list[Argument]:
    args: list[Argument] = []
    for index, body in columns.bodied:
        args += (index + 1, body)
    return args


_MERGED = BoundScript(
    "send_merged", durable="Sent again, each counts once more, unless both calls have the same `once=`"
)


class MergedSends:
    """Builds the sends of one topic that merges. Thread-safe.

    Args:
        topic: The registered definition.
        rpc_ids: Source of the ids of calls.
    """

    def __init__(self, topic: Topic, rpc_ids: RpcIdAllocator) -> None:
        self._topic, self._rpc_ids = topic, rpc_ids
        self._settings = merge_args(topic)
        self._blocks = topic.when_full is WhenFull.BLOCK  # who waits for room wants the others to wait, too

    def __call__(
        self,
        slot: int,
        messages: Sequence[EncodedMessage],
        detailed: bool = False,
        rpc_id: RpcId | None = None,
        *,
        partly: bool = False,
        each: bool = True,
    ) -> Call[SendResult]:
        """Build the send of up to `MAX_BATCH` messages of one slot.

        Args:
            slot: The slot.
            messages: What to send; of one slot.
            detailed: Also return for each message whether it was new.
            rpc_id: Id of the call, the same for its repeats; by default a new one.
            partly: Whether the call may store only part of the messages; then its result may be a `PartlySent`.
            each: With `partly`, whether a message is refused individually if its time has passed, or if it has no room
                and the topic does not wait for room.
        """
        number, topic = len(messages), self._topic
        rpc_id = rpc_id or self._rpc_ids.draw(topic.name, slot)
        values, records = record_args(messages)
        part = ("-" if not each else "*" if self._blocks else "+") if partly else ""
        args = _MERGED.args(
            lane=rpc_id.lane,
            call=rpc_id.number,
            floor=rpc_id.floor,
            digest=_digest_of(messages) if rpc_id.token is None else "",
            detailed=f"{int(detailed)}{part}",
            number=number,
            lowest=lowest_of(topic, messages),
            values=values,
            messages=records,
            **self._settings,
        )

        def parse(reply: list[Any], rpc_id: RpcId = rpc_id) -> SendResult:  # the call keeps its number open by that
            return _result_of(number, detailed, int(reply[0]), reply[1], int(reply[2]))

        keys = _MERGED.keys(slot_keys(topic.name, slot))
        return Call(_MERGED.name, keys, args, parse, True, topic.name, slot, _MERGED.durable)


def _digest_of(messages: Sequence[EncodedMessage]) -> str:
    """Return a digest of the messages of a named call: their contents and values, not their times."""
    digest = 0
    for message in messages:
        digest = crc32(untraced(cast("bytes", message.body)), crc32(message.content, digest))
    return f"{digest:x}"


def merge_args(topic: Topic) -> dict[str, Argument]:
    """Return the merge settings of a topic as arguments of the scripts that send to it, without `lowest`."""
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


def record_args(messages: Sequence[EncodedMessage]) -> tuple[int, list[Argument]]:
    """Return the number of values, 1 if all are equal, and the messages as arguments of plan_sends."""
    values: list[Argument] = [message.value for message in messages]
    records: list[Argument] = [cast("bytes", message.body) for message in messages]
    if values.count(values[0]) == len(values):
        del values[1:]
    if records.count(records[0]) == len(records):
        del records[1:]
    return len(values), [*[message.content for message in messages], *values, *records]


def lowest_of(topic: Topic, messages: Sequence[EncodedMessage]) -> int:
    """Return the earliest fixed time of a batch; 0 on other topics."""
    return min(message.value for message in messages) if topic.type.value == "FIXED_TIME" else 0


_MANY = BoundScript("send_many", durable=MERGES_AGAIN)


def joins_sends(topic: Topic) -> bool:
    """Return whether sends to several slots of a topic may share a call: not with `merge`, dropping, or a TTL."""
    aged_out = topic.ttl is not None and not topic.type.timed
    return topic.type is not TopicType.STREAM and topic.merge is None and not topic.drops and not aged_out


class JoinedSends:
    """Builds calls of sends to several slots, for a topic that `joins_sends`. Each slot has its own reply.

    Args:
        topic: The registered definition.
        one: Builds the send to one slot, for errors.
    """

    def __init__(self, topic: Topic, one: SendCall) -> None:
        self._topic, self._one = topic, one
        self._settings: dict[str, Argument] = {"max_backlog": topic.max_backlog_per_slot, "kind": topic.type.value}
        aged = not topic.type.timed and topic.max_priority is not None
        self._settings |= ages_of(topic) if aged else {"scale": 0, "unit_ms": 0}
        self._ages = PredictedAges(topic) if aged else None

    def __call__(self, parts: Sequence[Batch], detailed: bool = False) -> Call[list[SendResult | RmqError]]:
        """Build one call of sends to different slots.

        Args:
            parts: The messages, a few for each slot.
            detailed: Also return for each message whether it was new.
        """
        keys: list[str] = []
        sends: list[Argument] = []
        priorities: list[int] = []
        places: list[int] = []  # of the priorities in `sends`
        topic, ages, keys_of = self._topic.name, self._ages, _PRIORITY.keys
        for part in parts:
            keys += keys_of(slot_keys(topic, part.slot))
            columns = Batch.of(part)
            values = message_args(columns)
            sends += (len(values) + 1, len(columns.contents))
            if ages is not None:
                places += range(len(sends), len(sends) + 2 * len(columns.contents), 2)
                priorities += columns.values
            sends += values
        mark, built_ms = NO_MARK, monotonic_s() * 1_000
        if ages is not None:
            mark, scores = ages.predict(priorities, built_ms)
            for place, score in zip(places, scores, strict=True):
                sends[place] = score
        args = _MANY.args(detailed=int(detailed), mark=mark, sends=sends, **self._settings)
        parse = partial(self._parse, parts, detailed, built_ms)
        return Call(_MANY.name, tuple(keys), args, parse, True, topic, parts[0].slot, _MANY.durable)

    def _parse(
        self, parts: Sequence[Batch], detailed: bool, built_ms: float, reply: list[Any]
    ) -> list[SendResult | RmqError]:
        if self._ages is not None:
            self._ages.observe(reply[0], built_ms)
        return [self._parse_one(part, detailed, each) for part, each in zip(parts, reply[1:], strict=True)]

    def _parse_one(self, part: Batch, detailed: bool, reply: Any) -> SendResult | RmqError:
        if not isinstance(reply, bytes):
            return _result_of(len(part), detailed, int(reply[0]), reply[1])
        return error_of(self._one(part.slot, part, detailed), reply.decode(errors="replace"))
