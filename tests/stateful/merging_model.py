"""What one slot of a topic with `merge=` promises, in plain Python: docs/internals/merging.md, with tuples of sends.

All else is as on other topics, see `model`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import cast

from rmq import Collect, Merge, Overflow, PriorityRule, SendResult, Sliding, Topic, TopicType, WhenFull
from rmq._transport.rpc_ids import RpcId
from rmq.errors import (
    BacklogFullError,
    CollectionFullError,
    FixedTimePassedError,
    ReplyLostError,
    RmqError,
    SumOutOfRangeError,
)
from tests.stateful.model import Model
from tests.stateful.values import MOST, Send, Value, count_of, framed, items_of, newest, record, without
from tests.support.claims import Claimed
from tests.support.core import HEAD_BYTES, PartlySent, ages_for
from tests.support.slots import SlotState

Sent = tuple[bytes, int, Send]
"""Content, what decides the score, and what is sent."""


@dataclass
class Lane:
    """The calls of a lane: the lowest number that may be repeated, and the replies from there on."""

    used_ms: int
    floor: int = 0
    replies: dict[int, SendResult] = field(default_factory=dict[int, SendResult])


@dataclass(frozen=True)
class Fold:
    """What became of one message of a send.

    Attributes:
        new: Whether it became an entry of its own.
        lost: What was dropped of it and others.
        moved: Its score, where it is due earlier than before.
        window: Whether a window began.
    """

    new: bool
    lost: Value
    moved: int | None = None
    window: bool = False


class MergingModel(Model):
    """One slot of a topic that merges.

    Attributes:
        stored, held, buried: The values in store, in flight or waiting for a retry, and dead.
        gone: How many sends have left, and why.
        gone_items: The items that have left.
        filled: Contents that a failed flight has filled before their time, and to which the send that finds out adds.
        window_ms: Redis' time when the end of a window was noted, within a second.
    """

    def __init__(self, topic: Topic, now_ms: int) -> None:
        super().__init__(topic, now_ms)
        self.merge = cast("Merge", topic.merge)
        self.kind = self.merge.kind
        self.stored: dict[bytes, Value] = {}
        self.held: dict[bytes, Value] = {}
        self.buried: dict[bytes, Value] = {}
        self.gone: Counter[str] = Counter()
        self.gone_items: list[bytes] = []
        self.lanes: dict[str, Lane] = {}
        self.filled: set[bytes] = set()
        self.window_ms = 0

    def state(self) -> SlotState:
        stored, held, buried = (
            {content: record(self.kind, value) for content, value in values.items()}
            for values in (self.stored, self.held, self.buried)
        )
        return replace(super().state(), body=stored, held=held, dead_body=buried, merges=True)

    # where values go: the table "Where a value is"

    def _take(self, content: bytes, stamp: int) -> Claimed:
        self.held[content] = self.held.get(content, ()) + self.stored.pop(content)
        return super()._take(content, stamp)._replace(body=record(self.kind, self.held[content]))

    def _ack(self, content: bytes, claim_score: int) -> bool:
        acked = super()._ack(content, claim_score)
        if acked:
            self._leave(self.held.pop(content), "acked")
        return acked

    def _value_back(self, content: bytes) -> None:
        self.stored[content] = self.held.pop(content) + self.stored.get(content, ())
        self._end_wait(content)

    def _end_wait(self, content: bytes) -> None:
        """A join that a fold completes is due at once."""
        value, store = self.stored[content], self.slot.store
        if content in store and self.kind == "J" and len(items_of("J", value)) >= value[-1].wanted:
            store[content] = min(store[content], self.now_ms)

    def _die_with_value(self, content: bytes, *, aged: bool = False) -> None:
        source = self.stored if aged else self.held
        self.buried[content] = self.buried.get(content, ()) + source.pop(content)

    def _redrive_value(self, content: bytes) -> None:
        self.stored[content] = self.buried.pop(content) + self.stored.get(content, ())
        self._end_wait(content)

    def _drop_value(self, content: bytes, why: str, place: dict[bytes, int]) -> None:
        values = {id(self.slot.store): self.stored, id(self.slot.retry): self.held, id(self.slot.dead): self.buried}
        self._leave(values[id(place)].pop(content, ()), why)

    def _leave(self, value: Value, why: str) -> None:
        self.gone[why] += count_of(value)
        self.gone_items += [item for send in value for item in send.items]

    # sending

    def send_merged(self, batch: list[Sent], detailed: bool, rpc_id: RpcId) -> SendResult:
        """Send a batch, unless this call was carried out before."""
        lane = self.lanes.get(rpc_id.lane)
        if lane and rpc_id.number in lane.replies:
            return lane.replies[rpc_id.number]
        if lane and rpc_id.number < lane.floor:
            raise ReplyLostError("forgotten")
        slot, before = self.slot, (dict(self.slot.store), dict(self.slot.cool), dict(self.stored))
        over = self.merge.window_kind in ("leading", "trailing") and self.window_ms > self.now_ms + 1_000
        if over:  # the clock was set back, and the ends would be late by as much
            slot.cool.clear()
        try:
            result = self._send_batch(self._timed(batch), detailed)
        except RmqError:
            for values, old in zip((slot.store, slot.cool, self.stored), before, strict=True):
                values.clear()
                values.update(old)  # pyright: ignore[reportArgumentType, reportCallIssue]
            raise
        if not result.accepted:  # all of it was refused: nothing is to be remembered
            slot.cool.update(before[1])
            return result
        if over:
            self.window_ms = self.now_ms
        if lane is None:
            self.lanes = {name: each for name, each in self.lanes.items() if each.used_ms >= self.now_ms - 3_600_000}
            lane = self.lanes[rpc_id.lane] = Lane(self.now_ms)
        elif not 0 <= self.now_ms - lane.used_ms < 60_000:
            lane.used_ms = self.now_ms
        lane.floor = max(lane.floor, rpc_id.floor)
        kept = {number: reply for number, reply in lane.replies.items() if number >= rpc_id.floor}
        lane.replies = {**kept, rpc_id.number: result}
        return result

    def _timed(self, batch: list[Sent]) -> list[Sent]:
        """Turn delays into fixed times."""
        if self.topic.type is not TopicType.FIXED_TIME:
            return batch
        return [(content, self.due_ms(value), send) for content, value, send in batch]

    def _send_batch(self, batch: list[Sent], detailed: bool) -> SendResult:
        store, bound, known = self.slot.store, self.topic.max_backlog_per_slot, dict(self.slot.store)
        timed = self.topic.type is TopicType.FIXED_TIME
        if timed and all(score <= self.now_ms for _, score, _ in batch):
            raise FixedTimePassedError("past")
        self.filled.clear()
        folds, refused = self._folds(batch)
        outcomes = tuple(fold is not None and fold.new for fold in folds)
        folds = [fold for fold in folds if fold is not None]
        partly = {"done": len(batch), "refused": refused}
        if not folds:
            return PartlySent(0, 0, outcomes if detailed else (), **partly)
        number, batch = len(batch), [sent for place, sent in enumerate(batch) if place not in refused]
        new = sum(outcomes)
        if bound and not self.topic.drops and new and len(store) > bound:
            raise BacklogFullError("full")
        dropped = 0
        for fold in folds:
            self._leave(fold.lost, "dropped")
            dropped += count_of(fold.lost)
        accepted = sum(send.weight for *_, send in batch)
        self.totals.update(accepted=accepted, merged=accepted - dropped - new, dropped=dropped)
        self._hint([fold.moved for fold in folds if fold.moved is not None], known)
        if any(fold.window for fold in folds):
            if self.now_ms - self.window_ms >= 1_000:
                self.window_ms = self.now_ms
            for content in [content for content, ends in self.slot.cool.items() if ends <= self.now_ms]:
                del self.slot.cool[content]
        if self._ages:
            self.slot.born.update(dict.fromkeys((content for content, *_ in batch), self.now_ms))
        dropped += self._drop_excess() if self.topic.drops else 0
        told = new, len(batch) - new, outcomes if detailed else ()
        if len(batch) < number:
            return PartlySent(*told, dropped=dropped, **partly)
        return SendResult(*told, dropped=dropped)

    def _folds(self, batch: list[Sent]) -> tuple[list[Fold | None], dict[int, str]]:
        """Fold messages, and refuse by themselves, where there are several, those without room and late ones."""
        folds: list[Fold | None] = []
        refused: dict[int, str] = {}
        for place, sent in enumerate(batch):
            if self.topic.type is TopicType.FIXED_TIME and sent[1] <= self.now_ms:
                folds.append(None)
                refused[place] = "RMQ_PAST"
                continue
            try:
                folds.append(self._fold(*sent))
            except (CollectionFullError, SumOutOfRangeError) as error:
                if len(batch) == 1 or self.topic.when_full is WhenFull.BLOCK:
                    raise
                folds.append(None)
                refused[place] = "RMQ_ITEMS" if isinstance(error, CollectionFullError) else "RMQ_RANGE"
        return folds, refused

    def _hint(self, moved: list[int], known: dict[bytes, int]) -> None:
        """Wake consumers for what is due before all that they wait for."""
        hidden = self.now_ms if self.slot.prepare else -1
        crowded = len(known) <= len(self.slot.prepare)
        if not self.topic.type.timed:
            self.slot.hints.append(0)
        elif moved and (crowded or not any(hidden < score <= min(moved) for score in known.values())):
            self.slot.hints.append(min(moved))

    def _fold(self, content: bytes, score: int, send: Send) -> Fold:
        sent, store = replace(send, at_ms=self.now_ms), self.slot.store
        before, window = store.get(content), self.slot.cool.get(content)
        value, lost = self._within_bounds(content, sent)
        if before is None and not self._is_wanted(content):
            return Fold(new=False, lost=(sent,))
        self.stored[content] = value
        store[content] = self._first(content, score) if before is None else self._again(content, score)
        moved = store[content] if before is None or store[content] < before else None
        return Fold(before is None, (Send(0, items=tuple(lost)),), moved, self.slot.cool.get(content) != window)

    def _within_bounds(self, content: bytes, sent: Send) -> tuple[Value, list[bytes]]:
        """The stored value with a send, and the items that found no room."""
        stored, kind = self.stored.get(content, ()), self.kind
        value = (*stored, sent)
        if kind == "S" and abs(sum(send.number for send in value)) > MOST:
            raise SumOutOfRangeError("sum")
        if not isinstance(self.merge.reduce, Collect):
            return value, []
        bounds, in_flight = self.merge.reduce, self.held.get(content)
        flying = len(record(kind, in_flight)) - HEAD_BYTES if in_flight else 0
        room = min(bounds.max_bytes, 2 * bounds.max_bytes - flying)

        def fits(items: list[bytes]) -> bool:
            return len(items) <= bounds.max_items and len(framed(items)) <= room

        there, items, dropped = items_of(kind, stored), items_of(kind, value), list[bytes]()
        if fits(items):
            return value, []
        overflow = self.merge.overflow(self.topic.type)
        if overflow in (Overflow.REFUSE, Overflow.RELEASE):
            full = len(there) >= bounds.max_items or len(framed(there)) >= room
            refused = len(items) > len(there) and (full or overflow is Overflow.REFUSE)
            short = len(items) <= 3 * bounds.max_items and len(framed(items)) <= 3 * bounds.max_bytes
            if refused and not (overflow is Overflow.RELEASE and not flying and self._is_filled(content) and short):
                raise CollectionFullError("full")
        elif overflow is Overflow.DROP_OLDEST:
            while items and not fits(items):
                dropped.append(items.pop(0))
        else:
            while len(items) > len(there) and not fits(items):
                dropped.append(items.pop())
        return without(value, dropped), dropped

    def _is_filled(self, content: bytes) -> bool:
        """Whether a failed flight has filled it before its time, as this call finds out."""
        timed = self.topic.type is TopicType.RANGE_MERGE
        if timed and self.slot.store.get(content, self.now_ms) > self.now_ms:
            self.filled.add(content)
        return content in self.filled

    def _is_wanted(self, content: bytes) -> bool:
        """Whether a new message is stored: one within the window of a leading one is not."""
        return self.merge.window_kind != "leading" or self.slot.cool.get(content, 0) <= self.now_ms

    def _complete(self, content: bytes) -> bool:
        """Whether it is due at once."""
        value, most, bounds = self.stored[content], self.merge.max_count, self.merge.reduce
        items = items_of(self.kind, value)
        if isinstance(most, int) and count_of(value) >= most:
            return True
        if self.kind == "J" and len(items) >= value[-1].wanted:
            return True
        if not isinstance(bounds, Collect) or self.merge.overflow(self.topic.type) is not Overflow.RELEASE:
            return False
        return len(items) >= bounds.max_items or len(framed(items)) >= bounds.max_bytes

    def _first(self, content: bytes, score: int) -> int:
        """The score of a new message."""
        if self.topic.type is not TopicType.RANGE_MERGE:
            return self._aged(content, score)
        now_ms, window = self.now_ms, self.merge.window
        if self.merge.window_kind in ("leading", "trailing"):
            begins = max(now_ms, self.slot.cool.get(content, 0))
            if begins > now_ms and self._complete(content):
                return now_ms
            self.slot.cool[content] = begins + score
            return begins
        wait = min(score, window.max_wait_ms) if isinstance(window, Sliding) else score
        return now_ms if self._complete(content) else now_ms + wait

    def _waiting(self, content: bytes, due_ms: int, time_range: int, outdated: bool) -> int:
        """The due time of a message that waits, once a send has folded into it."""
        window = self.merge.window
        if due_ms <= self.now_ms:
            return due_ms
        if self._complete(content):
            if self.slot.cool.get(content, 0) == due_ms + time_range:
                self.slot.cool[content] = due_ms
            return self.now_ms
        if not isinstance(window, Sliding) or outdated:
            return due_ms
        latest = min(send.at_ms for send in self.stored[content]) + window.max_wait_ms
        return max(self.now_ms, min(self.now_ms + time_range, latest))

    def _again(self, content: bytes, score: int) -> int:
        """The score of a message in store that a send has folded into."""
        stored, value = self.slot.store[content], self.stored[content]
        outdated = self.kind == "N" and newest(value) is not value[-1]
        if self.topic.type is TopicType.RANGE_MERGE:
            return self._waiting(content, stored, score, outdated)
        if outdated:
            return stored
        if self.topic.type is TopicType.FIXED_TIME:
            return score
        scale = ages_for(self.topic.max_priority).scale
        rolled_back = stored < scale if scale > 1 else stored <= self.topic.max_retries
        own = stored // scale
        match PriorityRule.LAST if rolled_back else self.merge.priority:
            case PriorityRule.HIGHEST:
                score = max(own, score)
            case PriorityRule.LOWEST:
                score = min(own, score)
            case PriorityRule.SUM:
                score = max(own, min(own + score, self.topic.priorities[1]))
            case _:
                pass
        return self._aged(content, score)
