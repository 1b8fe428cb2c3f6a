"""The scripts that send: to one slot, to several in a call, and to topics that merge."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, cast
from zlib import crc32

from rmq._broker import streams
from rmq._broker.binding import BoundScript
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

_SEND = BoundScript("send", durable=MERGES_AGAIN)
_UNITS = {TopicType.RANGE_MERGE: "after", TopicType.FIXED_TIME: "at", TopicType.PRIORITY: "priority"}
"""Type of a topic -> unit of the values of its messages, see `lua/messages/send.lua`."""

_SLOT = attrgetter("store", "prepare", "body", "meta", "wake")
_LIMITED_SLOT = attrgetter("store", "prepare", "body", "meta", "wake", "retry", "error", "born")
"""The keys of a slot of topics that drop, or have a TTL by priority."""


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


def send_calls(topic: Topic, rpc_ids: RpcIdAllocator | None = None, again: str = MERGES_AGAIN) -> SendCall:
    """Return the builder of a topic's sends.

    Args:
        topic: The registered definition.
        rpc_ids: Source of the ids of calls to topics that merge; by default a new one.
        again: Topics without `merge=`: what a repeat by the caller does, for errors about `durability`.
    """
    if topic.type is TopicType.STREAM:
        return partial(streams.send, topic)
    if topic.merge is not None:
        return MergedSends(topic, rpc_ids or RpcIdAllocator())
    return QueueSends(topic, again)


class QueueSends:
    """Builds the sends of one topic. Arguments that are the same for all of them are computed once.

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
        self._known: dict[str, Argument] = {
            **_SEND.settings_of(topic),
            "unit": _UNITS[topic.type],
            "limits": f"{int(topic.drops)} {topic.max_retries} {int(ages)}" if limited else "",
        }
        self._ages = PredictedAges(topic) if not self._timed and topic.max_priority is not None else None

    @cached_property
    def _args(self) -> Callable[..., list[Argument]]:
        return _SEND.args_with(**self._known)

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
        number, ages, built_ms, mark = len(messages), self._ages, 0.0, NO_MARK
        if number == 1:  # most sends: no columns for it
            _, content, value, body, _ = messages[0]
            part: list[Argument] = [3, 1, value, content] if body is None else [5, 1, value, content, 1, body]
        else:
            if ages is not None:
                built_ms = monotonic_s() * 1_000
                mark = ages.mark_at(built_ms)
            part = self._part(Batch.of(messages), mark)
        wanted: Argument = f"{int(detailed)}+" if partly and self._fixed and number > 1 else int(detailed)
        args = self._args(detailed=wanted, ages="" if ages is None else ages.text(mark), chunk="", parts=part)

        def parse(reply: list[Any]) -> SendResult:
            if ages is not None and built_ms:
                ages.observe(reply[0], built_ms)
            return _result_of(number, detailed, reply[1])

        keys = self._keys_of(slot_keys(self._topic, slot))
        return Call(_SEND.name, keys, args, parse, True, self._topic, slot, self._again)

    def joined(self, parts: Sequence[Batch], detailed: bool = False) -> Call[list[SendResult | RmqError]]:
        """Build one call of sends to different slots. Each has its own reply.

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
                error_of(self(part.slot, part, detailed), one.decode(errors="replace"))
                if isinstance(one, bytes)
                else _result_of(len(part), detailed, one)
                for part, one in zip(parts, reply[1:], strict=True)
            ]

        return Call(_SEND.name, tuple(keys), args, parse, True, topic, parts[0].slot, self._again)

    def chunk(self, slot: int, messages: Sequence[EncodedMessage], chunk: Chunk) -> Call[int | None]:
        """Return a call that sends a chunk once; its result is how many messages were new, `None` if sent before."""
        part, ages = self._part(Batch.of(messages), NO_MARK), self._ages
        args = self._args(detailed=0, ages="" if ages is None else ages.text(NO_MARK), chunk=chunk.text, parts=part)

        def parse(reply: list[Any]) -> int | None:
            return int(reply[1][0]) if len(reply) > 1 else None

        keys = (*self._keys_of(slot_keys(self._topic, slot)), chunk.key)
        return Call(_SEND.name, keys, args, parse, True, self._topic, slot, _SEND.durable)

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
        part += (scores[0], *contents) if alike else _paired(scores, contents)
        part += _body_args(columns)
        part[0] = len(part) - 1
        return part


_REFUSALS = {ord("2"): "RMQ_ITEMS", ord("3"): "RMQ_RANGE", ord("4"): "RMQ_PAST"}
"""Outcome of a message -> why it was refused."""


def _result_of(number: int, detailed: bool, reply: list[Any]) -> SendResult:
    """Return the result of a send.

    Args:
        number: How many messages were sent.
        detailed: Whether the caller asks for the outcome of each.
        reply: How many of them were new; the outcome of each, a digit, nothing where nobody needs it, shorter where
            only the first ones were stored; and how many messages were dropped, if the script tells.
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
"""Stands for the age mark of messages whose priorities are no scores yet."""


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
        """Return the age mark of a call that is built at a time by `monotonic_s`, in ms; `NO_MARK` at first."""
        return NO_MARK if self._ahead_ms is None else self._ages.mark_at(built_ms + self._ahead_ms)

    def text(self, mark: int) -> str:
        """Return the argument `ages` of the script."""
        return f"{self._head}{mark}"

    def observe(self, carried_out_ms: int, built_ms: float) -> None:
        """Record when a call was run by the clock of Redis, and when it was built."""
        self._ahead_ms = carried_out_ms - built_ms


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


class Chunk(NamedTuple):
    """Identifies a chunk of a task of Spark, which is sent once, see `lua/messages/send_merged.lua`.

    Attributes:
        key: Hash with the marks of the query.
        name: Name of the chunk in it.
        batch: Number of the batch, from 0.
        digest: Digest of the messages.
        keep_s: How long the marks are kept after the last send of the query to the slot, seconds.
        strict: Topics that merge: whether to refuse other messages than those that the batch has sent before.
        first: Topics that merge: number of messages of the chunk that were sent before these.
    """

    key: str
    name: str
    batch: int
    digest: str
    keep_s: int
    strict: bool
    first: int

    @property
    def text(self) -> str:
        """The argument `chunk` of scripts whose sends merge with the backlog by content."""
        return f"{self.name} {self.batch} {self.digest} {self.keep_s}"


class MergedSends:
    """Builds the sends of one topic that merges. Thread-safe.

    Args:
        topic: The registered definition.
        rpc_ids: Source of the ids of calls.
    """

    def __init__(self, topic: Topic, rpc_ids: RpcIdAllocator) -> None:
        self._topic, self._rpc_ids = topic, rpc_ids
        self._rules = merge_rules(topic)
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
        part = ("-" if not each else "*" if self._blocks else "+") if partly else ""
        digest = _digest_of(messages) if rpc_id.token is None else ""
        args = self._args(messages, rpc_id, digest, f"{int(detailed)}{part}")

        def parse(reply: list[Any], rpc_id: RpcId = rpc_id) -> SendResult:  # the call keeps its number open by that
            return _result_of(number, detailed, reply)

        keys = _MERGED.keys_of(topic, slot)
        return Call(_MERGED.name, keys, args, parse, True, topic.name, slot, _MERGED.durable)

    def chunk(self, slot: int, messages: Sequence[EncodedMessage], chunk: Chunk) -> Call[list[Any]]:
        """Return a call that sends a chunk, or the first messages of it, unless it was sent before."""
        rpc_id = RpcId(chunk.name, chunk.batch, chunk.batch)
        kept = f"{chunk.keep_s} {int(chunk.strict)} {chunk.first}"
        args = self._args(messages, rpc_id, chunk.digest, "0-", kept)
        keys = _MERGED.keys_with(self._topic, slot, {"marks": chunk.key})
        return Call(_MERGED.name, keys, args, list, True, self._topic.name, slot, _MERGED.durable)

    def _args(
        self, messages: Sequence[EncodedMessage], rpc_id: RpcId, digest: str, detailed: str, chunk: str = ""
    ) -> list[Argument]:
        values, records = record_args(messages) if messages else (1, [])
        return _MERGED.args(
            lane=rpc_id.lane,
            call=rpc_id.number,
            floor=rpc_id.floor,
            digest=digest,
            chunk=chunk,
            detailed=detailed,
            number=len(messages),
            rules=self._rules,
            lowest=lowest_of(self._topic, messages),
            values=values,
            messages=records,
        )


def _digest_of(messages: Sequence[EncodedMessage]) -> str:
    """Return a digest of the messages of a named call: their contents and values, not their times."""
    digest = 0
    for message in messages:
        digest = crc32(untraced(cast("bytes", message.body)), crc32(message.content, digest))
    return f"{digest:x}"


def merge_rules(topic: Topic) -> str:
    """Return how a topic merges as one argument of the scripts that send to it, see `merge_rules` in `lua/includes`."""
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


def lowest_of(topic: Topic, messages: Sequence[EncodedMessage]) -> int:
    """Return the least value of a batch of fixed times, the longest delay if it has any; 0 on other topics."""
    return min((message.value for message in messages), default=0) if topic.type.value == "FIXED_TIME" else 0
