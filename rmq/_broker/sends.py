"""The scripts that send: to one slot, to several in a call, and to topics that merge."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Literal, Protocol, cast
from zlib import crc32

from rmq._broker import streams
from rmq._broker.binding import BoundScript
from rmq._broker.claims import result_of
from rmq._broker.keys import slot_keys
from rmq._io.wire import Argument
from rmq._model.batches import Batch, EncodedMessage, Messages
from rmq._model.merging import Collect, Merge, PriorityRule, Sliding
from rmq._model.records import untraced
from rmq._model.replies import PartlySent, SendResult
from rmq._model.scores import ages_for
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic, TopicType, WhenFull
from rmq._transport.call import Call, Joining
from rmq._transport.rpc_ids import RpcId, RpcIdAllocator
from rmq.errors import RmqError

MERGES_AGAIN = (
    "Sending it again is safe: it merges with the message in the backlog, or is delivered again if that message was "
    "handled meanwhile"
)
"""Effect of repeating a send to a topic without `merge=`, for errors about `durability`."""

_SEND = BoundScript("send", durable=MERGES_AGAIN)
_UNITS = {TopicType.RANGE_MERGE: "after", TopicType.FIXED_TIME: "at", TopicType.PRIORITY: "priority"}
"""Type of a topic -> unit of the values of its messages, see `lua/messages/send.lua`."""

_SLOT = attrgetter("store", "prepare", "body", "meta", "wake")
_LIMITED_SLOT = attrgetter("store", "prepare", "body", "meta", "wake", "retry", "error", "born")
"""The keys of a slot of topics that drop, or have a TTL by priority."""


Partly = Literal["", "first", "each"]
"""Whether a call may store only some of its messages: all or none; only the first ones; or only the first ones, without
each one whose time has passed, or that has no room if the topic does not wait for room. Types that never do so ignore
it."""


class SendCall(Protocol):
    """Builds calls that send to a topic."""

    def __call__(
        self, slot: int, messages: Messages, detailed: bool = False, rpc_id: RpcId | None = None, partly: Partly = ""
    ) -> Call[SendResult]:
        """Build a call that sends up to `MAX_BATCH` messages of one slot.

        Args:
            slot: The slot.
            messages: The messages, all of one slot.
            detailed: Also return for each message whether it was new.
            rpc_id: Topics that merge: id of the call, the same for its repeats; by default a new one. Other topics need
                it only for a chunk of Spark, since a repeat merges.
            partly: Whether the call may store only some of the messages; then its result may be a `PartlySent`.
        """
        ...


def send_calls(topic: Topic, rpc_ids: RpcIdAllocator | None = None, again: str = MERGES_AGAIN) -> SendCall:
    """Return the builder of a topic's sends.

    Args:
        topic: The registered definition.
        rpc_ids: Source of the ids of calls to topics that merge; by default a new one.
        again: Topics without `merge=`: the effect of a repeat by the caller, for errors about `durability`.
    """
    if topic.type is TopicType.STREAM:
        return streams.sends(topic)
    if topic.merge is not None:
        return MergedSends(topic, rpc_ids or RpcIdAllocator())
    return QueueSends(topic, again)


def _parts_of(reply: list[Any]) -> list[Any]:
    """Return the reply of each slot as that of a call to it alone; the text of an error is left as it is."""
    now_ms, *parts = reply
    return [part if isinstance(part, bytes) else (now_ms, part) for part in parts]


_JOINING = Joining(7, _parts_of)


class QueueSends:
    """Builds calls that send to one topic. Arguments that are the same for all calls are computed once.

    Attributes:
        joins: Whether sends to several slots may share a call, see `joined`: not if the topic drops, or has a TTL by
            priority.
    """

    def __init__(self, topic: Topic, again: str = MERGES_AGAIN) -> None:
        ages = topic.ttl is not None and not topic.type.timed
        limited = topic.drops or ages
        self.joins = not limited
        self._topic, self._timed, self._again = topic.name, topic.type.timed, again
        self._fixed = topic.type is TopicType.FIXED_TIME
        self._keys_of = _LIMITED_SLOT if limited else _SLOT
        limits = f"{int(topic.drops)} {topic.max_retries} {int(ages)}" if limited else ""
        self._args = _SEND.args_with(**_SEND.settings_of(topic), unit=_UNITS[topic.type], limits=limits)
        self._ages = PredictedAges(topic) if not self._timed and topic.max_priority is not None else None

    def __call__(
        self, slot: int, messages: Messages, detailed: bool = False, rpc_id: RpcId | None = None, partly: Partly = ""
    ) -> Call[SendResult]:
        number, ages, built_ms, mark = len(messages), self._ages, 0.0, NO_MARK
        if number == 1:  # most sends: no columns for it
            _, content, value, body, _ = messages[0]
            part: list[Argument] = [3, 1, value, content] if body is None else [5, 1, value, content, 1, body]
        else:
            if ages is not None:
                built_ms = monotonic_s() * 1_000
                mark = ages.mark_at(built_ms)
            part = self._part(Batch.of(messages), mark)
        chunk, keys = "", self._keys_of(slot_keys(self._topic, slot))
        if rpc_id is not None and rpc_id.key:
            chunk, keys = rpc_id.chunk, (*keys, rpc_id.key)
        wanted: Argument = f"{int(detailed)}+" if partly == "each" and self._fixed and number > 1 else int(detailed)
        args = self._args(detailed=wanted, ages="" if ages is None else ages.text(mark), chunk=chunk, parts=part)

        def parse(reply: list[Any]) -> SendResult:
            if ages is not None and built_ms:
                ages.observe(reply[0], built_ms)
            return _result_of(number, detailed, reply[1])

        joining = _JOINING if self.joins and number == 1 and not chunk else None
        return Call(_SEND.name, keys, args, parse, True, self._topic, slot, self._again, joining=joining)

    def joined(self, parts: Sequence[Batch], detailed: bool = False) -> Call[list[SendResult | RmqError]]:
        """Build one call that sends to different slots. Each slot has its own reply.

        Args:
            parts: The messages, a few for each slot.
            detailed: Also return for each message whether it was new.
        """
        keys: list[str] = []
        sends: list[Argument] = []
        topic, ages, built_ms = self._topic, self._ages, monotonic_s() * 1_000
        mark = NO_MARK if ages is None else ages.mark_at(built_ms)
        for part in parts:
            keys += self._keys_of(slot_keys(topic, part.slot))
            sends += self._part(Batch.of(part), mark)
        wanted: Argument = f"{int(detailed)}+" if self._fixed else int(detailed)
        args = self._args(detailed=wanted, ages="" if ages is None else ages.text(mark), chunk="", parts=sends)

        def parse(reply: list[Any]) -> list[SendResult | RmqError]:
            if ages is not None:
                ages.observe(reply[0], built_ms)
            return [
                result_of(partial(self, part.slot, part, detailed), partial(_result_of, len(part), detailed), one)
                for part, one in zip(parts, reply[1:], strict=True)
            ]

        return Call(_SEND.name, tuple(keys), args, parse, True, topic, parts[0].slot, self._again)

    def _part(self, columns: Batch, mark: int) -> list[Argument]:
        """Return the messages of one slot as the script takes them, see `parts` in its header."""
        values, contents = columns.values, columns.contents
        number = len(contents)
        alike = values.count(values[0]) == number
        scores = values[:1] if alike else values
        if mark != NO_MARK and self._ages is not None:
            scores = self._ages.aged(scores, mark)
        part: list[Argument] = [0, number]
        if number > 1:
            part += (1 if alike else number, min(values) if self._timed else 0)
        if alike:
            part += (scores[0], *contents)
        else:
            pairs: list[Argument] = [0] * (2 * number)
            pairs[::2], pairs[1::2] = scores, contents
            part += pairs
        for index, body in columns.bodied:
            part += (index + 1, body)
        part[0] = len(part) - 1
        return part


_REFUSALS = {ord("2"): "RMQ_ITEMS", ord("3"): "RMQ_RANGE", ord("4"): "RMQ_PAST"}
"""Outcome of a message -> error code of its refusal."""


def _result_of(number: int, detailed: bool, reply: list[Any]) -> SendResult:
    """Return the result of a send.

    Args:
        number: Number of messages in the send.
        detailed: Whether the caller asks for the outcome of each.
        reply: Number of new messages; a string with the outcome of each message as a digit, empty if not requested,
            shorter if only the first ones were stored; and the number of dropped messages, if the script returns it.
    """
    new, flags, *more = reply
    new, dropped = int(new), int(more[0]) if more else 0
    outcomes = tuple(flag == 49 for flag in flags) if detailed else ()
    if not flags or (len(flags) == number and not (b"2" in flags or b"3" in flags or b"4" in flags)):
        return SendResult(new, number - new, outcomes, dropped=dropped)
    refused = {index: _REFUSALS[flag] for index, flag in enumerate(flags) if flag in _REFUSALS}
    merged = len(flags) - len(refused) - new
    return PartlySent(new, merged, outcomes, dropped=dropped, done=len(flags), refused=refused)


NO_MARK = -1
"""Replaces the age mark of messages whose priorities are not encoded as scores yet."""


class PredictedAges:
    """Computes scores of priorities with the age expected at the time of the call, so that the script need not.

    The clock of Redis decides: the script computes them again if the age differs. The difference of the clocks,
    including the time until a call is run, is known from the previous call.
    """

    def __init__(self, topic: Topic) -> None:
        self._ages = ages_for(topic.max_priority)
        self.aged = self._ages.aged
        self._head = f"{self._ages.scale} {self._ages.unit_ms} "
        self._ahead_ms: float | None = None

    def mark_at(self, built_ms: float) -> int:
        """Return the expected age mark of a call built at a time of `monotonic_s`, ms; `NO_MARK` before a reply."""
        return NO_MARK if self._ahead_ms is None else self._ages.mark_at(built_ms + self._ahead_ms)

    def text(self, mark: int) -> str:
        """Return the argument `ages` of the script."""
        return f"{self._head}{mark}"

    def observe(self, carried_out_ms: int, built_ms: float) -> None:
        """Record when a call was run by the clock of Redis, and when it was built."""
        self._ahead_ms = carried_out_ms - built_ms


_MERGED = BoundScript(
    "send_merged", durable="Sending them again counts each message once more, unless both calls have the same `once=`"
)


class MergedSends:
    """Builds calls that send to one topic that merges. Thread-safe.

    Args:
        topic: The registered definition.
        rpc_ids: Source of the ids of calls.
    """

    def __init__(self, topic: Topic, rpc_ids: RpcIdAllocator) -> None:
        self._topic, self._rpc_ids = topic, rpc_ids
        self._rules, self._fixed = merge_rules(topic), topic.type is TopicType.FIXED_TIME
        blocks = topic.when_full is WhenFull.BLOCK  # who waits for room wants the others to wait, too
        self._parts = {"": "", "first": "-", "each": "*" if blocks else "+"}

    def __call__(
        self, slot: int, messages: Messages, detailed: bool = False, rpc_id: RpcId | None = None, partly: Partly = ""
    ) -> Call[SendResult]:
        number, topic = len(messages), self._topic
        rpc_id = rpc_id or self._rpc_ids.draw(topic.name, slot)
        values, records = record_args(messages) if messages else (1, [])
        args = _MERGED.args(
            lane=rpc_id.lane,
            call=rpc_id.number,
            floor=rpc_id.floor,
            digest=rpc_id.digest if rpc_id.key else _digest_of(messages) if rpc_id.token is None else "",
            chunk=rpc_id.keep,
            detailed=f"{int(detailed)}{self._parts[partly]}",
            number=number,
            rules=self._rules,
            lowest=min(message.value for message in messages) if self._fixed and messages else 0,
            values=values,
            messages=records,
        )

        def parse(reply: list[Any], rpc_id: RpcId = rpc_id) -> SendResult:  # the call keeps its number open by that
            return _result_of(number, detailed, reply)

        keys = _MERGED.keys_with(topic, slot, {"marks": rpc_id.key}) if rpc_id.key else _MERGED.keys_of(topic, slot)
        return Call(_MERGED.name, keys, args, parse, True, topic.name, slot, _MERGED.durable)


def _digest_of(messages: Sequence[EncodedMessage]) -> str:
    """Return a digest of the messages of a named call: their contents and values, not their times."""
    digest = 0
    for message in messages:
        digest = crc32(untraced(cast("bytes", message.body)), crc32(message.content, digest))
    return f"{digest:x}"


def merge_rules(topic: Topic) -> str:
    """Return how a topic merges as one argument of the scripts that send to it, see `merge_rules` of the scripts."""
    merge = cast("Merge", topic.merge)
    collect = merge.reduce if isinstance(merge.reduce, Collect) else None
    window, ages = merge.window, ages_for(topic.max_priority)
    rules = {
        "kind": topic.type.value,
        "max_backlog": topic.max_backlog_per_slot,
        "drop": topic.drops,
        "max_retries": topic.max_retries,
        "ttl": topic.ttl is not None and not topic.type.timed,
        "scale": ages.scale,
        "unit_ms": ages.unit_ms,
        "highest": topic.priorities[1],
        "priority": PriorityRule(merge.priority).value,
        "window": merge.window_kind,
        "max_wait": window.max_wait_ms if isinstance(window, Sliding) else 0,
        "max_count": merge.max_count if isinstance(merge.max_count, int) else 0,
        "max_items": collect.max_items if collect else 0,
        "max_bytes": collect.max_bytes if collect else 0,
        "when_full": merge.overflow(topic.type).value,
    }
    return json.dumps(rules, separators=(",", ":"))


def record_args(messages: Sequence[EncodedMessage]) -> tuple[int, list[Argument]]:
    """Return the number of values, 1 if all are equal, and the messages as arguments of plan_sends."""
    values: list[Argument] = [message.value for message in messages]
    records: list[Argument] = [cast("bytes", message.body) for message in messages]
    if values.count(values[0]) == len(values):
        del values[1:]
    if records.count(records[0]) == len(records):
        del records[1:]
    return len(values), [*[message.content for message in messages], *values, *records]
