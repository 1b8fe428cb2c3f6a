"""Random histories of one slot of a topic that merges, on real Redis and on the model at once.

Beside what holds for every slot: each accepted send stands in exactly one value, or has left in exactly one way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from rmq import (
    PER_MESSAGE,
    Collect,
    Fixed,
    Keep,
    Leading,
    Max,
    Merge,
    Min,
    Newest,
    Overflow,
    PriorityRule,
    Replace,
    SendResult,
    Sliding,
    Sum,
    TopicType,
    WhenFull,
)
from rmq._transport.rpc_ids import RpcId
from tests.stateful.machine import SlotMachine
from tests.stateful.merging_model import MergingModel, Sent
from tests.stateful.values import MOST, Send, framed, record
from tests.support.core import (
    Call,
    ClaimPart,
    EncodedMessage,
    MergedSends,
    PartlySent,
    Reducer,
    read_record,
    sends,
)
from tests.support.slots import read_state, with_hints

NUMBERS = (0, 1, 1, 2, -1, 0.5, MOST, -MOST)
SUMMED = (0, 2**30, 2**30, 2**31, -(2**30), 2**51, 2**52, -(2**52))
"""Doubles hold all of their sums, so that no order of adding them up rounds."""
BODIES = (None, b"", b"1", b"\x00rm1")
PARTS = (b"a", b"", framed([b"a"]), b"b\x01\x00\x00\x00a", b"c")
"""Items of sets: some hold the frames of others."""

bounds = st.builds(
    Collect,
    max_items=st.sampled_from([1, 2, 3, 1_000]),
    max_bytes=st.sampled_from([14, 25, 40, 65_536]),
    unique=st.booleans(),
    when_full=st.sampled_from([None, *Overflow]),
)
reducers: st.SearchStrategy[Reducer] = st.sampled_from([Keep(), Replace(), Newest(), Max(), Min(), Sum()])
windows = st.sampled_from(
    [
        None,
        Fixed("500ms"),
        Sliding("500ms", max_wait="500ms"),
        Sliding("500ms", max_wait="1s500ms"),
        Leading("500ms"),
        Leading("500ms", False),
    ]
)
batches = st.lists(
    st.tuples(st.sampled_from(list(product(range(4), range(5)))), st.integers(0, 999)), min_size=1, max_size=4
)
turns = st.tuples(
    st.sampled_from(["a", "b", "=name"]),
    st.sampled_from(["next", "next", "next", "skip", "late"]),
    st.sampled_from(["keep", "keep", "keep", "raise", "lower"]),
)


@dataclass(frozen=True)
class SendCall:
    """A send that can be repeated."""

    call: Call[SendResult]
    batch: list[Sent]
    detailed: bool
    rpc_id: RpcId


class MergingMachine(SlotMachine):
    """One slot of a topic of one type, with one of all ways of merging."""

    of_topic = MergingModel
    model: MergingModel  # pyright: ignore[reportIncompatibleVariableOverride]

    @initialize(
        reduce=reducers | bounds,
        window=windows,
        most=st.sampled_from([None, None, 1, 2, 3, PER_MESSAGE]),
        priority=st.sampled_from(list(PriorityRule)),
        lease_s=st.integers(1, 3),
        bounds=st.tuples(st.integers(0, 3), st.sampled_from([None, None, None, 1, 2])),
        when_full=st.sampled_from([WhenFull.REFUSE, WhenFull.DROP]),
        age=st.tuples(st.sampled_from([None, None, 300, 2_000]), st.sampled_from([1, 2, 100])),
    )
    def begin(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, lease_s: int, age: tuple[int | None, int], bounds: tuple[int, int | None], **drawn: Any
    ) -> None:
        self.definition = {**type(self).definition, "merge": self._merge(drawn)}
        super().begin(
            lease_s,
            True,
            max_retries=bounds[0],
            max_backlog=bounds[1],
            when_full=drawn["when_full"],
            ttl=age[0] and f"{age[0]}ms",
            max_dead=age[1],
            max_dead_age="11d13h46m40s",
        )
        self.number = 0
        self.accepted = 0
        self.accepted_items: list[bytes] = []
        self.calls: list[SendCall] = []
        self.numbers: dict[str, set[int]] = {}
        self.floors: dict[str, int] = {}

    def _merge(self, drawn: dict[str, Any]) -> Merge:
        """What was drawn, as far as topics of this type have it."""
        reduce, window, most = drawn["reduce"], drawn["window"], drawn["most"]
        timed = self.type is TopicType.RANGE_MERGE
        if isinstance(reduce, Collect):
            if self.type is TopicType.FIXED_TIME and reduce.when_full is Overflow.RELEASE:
                reduce = Collect(reduce.max_items, reduce.max_bytes, reduce.unique)
        if most is PER_MESSAGE:
            if not (isinstance(reduce, Collect) and reduce.unique):
                most = 2
            elif isinstance(window, Leading):
                window = None
        priority = drawn["priority"] if self.type is TopicType.PRIORITY else PriorityRule.LAST
        return Merge(reduce, window if timed else None, most if timed else None, priority)

    # sending

    @rule(drawn=batches, detailed=st.booleans(), rpc_id=turns)
    def send(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, drawn: list[tuple[tuple[int, int], int]], detailed: bool, rpc_id: tuple[str, str, str]
    ) -> None:
        batch = [(self._content(index), self._value(choice) or 1, self._draw(draw)) for (index, choice), draw in drawn]
        encoded = [
            EncodedMessage(0, content, score, record(self.model.kind, (send,))) for content, score, send in batch
        ]
        named = self._rpc_id(*rpc_id)
        send = cast("MergedSends", sends.send_calls(self.topic))
        call = with_hints(send(0, encoded, detailed, named, partly="each"))
        self.calls.append(SendCall(call, batch, detailed, named))
        self._carry_out(self.calls[-1])

    @rule(drawn=batches, rpc_id=turns, consumer=st.integers(0, 1))
    def send_and_claim(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, drawn: list[tuple[tuple[int, int], int]], rpc_id: tuple[str, str, str], consumer: int
    ) -> None:
        self.send(drawn, False, rpc_id)
        self.advance(0)
        self._claim(10, consumer)

    @precondition(lambda self: self.calls)
    @rule(pick=st.integers(0, 5))
    def send_again(self, pick: int) -> None:
        """Repeat a call, whatever became of it."""
        self._carry_out(self.calls[-1 - pick % len(self.calls)])

    def _carry_out(self, sent: SendCall) -> None:
        known = self._is_known(sent.rpc_id)
        result = self._both(sent.call, lambda: self.model.send_merged(sent.batch, sent.detailed, sent.rpc_id))
        if result is None or known:
            return
        refused = result.refused if isinstance(result, PartlySent) else {}
        batch = [each for place, each in enumerate(sent.batch) if place not in refused]
        self.owed.update(content for content, *_ in batch)
        if result.dropped:
            self.owed &= self.model.slot.store.keys() | self.model.slot.retry.keys()
        self.accepted += sum(send.weight for *_, send in batch)
        self.accepted_items += [item for *_, send in batch for item in send.items]

    def _is_known(self, rpc_id: RpcId) -> bool:
        return rpc_id.lane in self.model.lanes and rpc_id.number in self.model.lanes[rpc_id.lane].replies

    def _rpc_id(self, lane: str, order: str, floor: str) -> RpcId:
        used = self.numbers.setdefault(lane, set())
        last = max(used, default=0)
        late = [number for number in range(1, last) if number not in used]
        number = late[-1] if late and order == "late" else last + (2 if order == "skip" else 1)
        used.add(number)
        known = self.floors.get(lane, 0)
        chosen = min(number, {"keep": known, "raise": known + 2, "lower": known - 1}[floor])
        self.floors[lane] = max(known, chosen)
        return RpcId(lane, number, max(0, chosen))

    def _draw(self, draw: int) -> Send:
        """What one message carries, made of a number below 1,000."""
        self.number += 1
        weight, kind = (1, 1, 1, 3)[draw % 4], self.model.kind
        draw //= 4
        match kind:
            case "K" | "R":
                return Send(weight, body=BODIES[draw % 4])
            case "N":
                return Send(weight, number=draw % 3, body=b"%d" % self.number)
            case "X" | "I" | "S":
                return Send(weight, number=(SUMMED if kind == "S" else NUMBERS)[draw % 8])
            case "C":
                items = [b"%d" % self.number, b"%d+" % self.number, b"%d...." % self.number][draw % 3 : draw % 3 + 2]
            case _:
                items = list(dict.fromkeys([PARTS[draw % 5], PARTS[draw // 5 % 5]]))
        reduce = self.model.merge.reduce
        assert isinstance(reduce, Collect)
        while len(items) > reduce.max_items or len(framed(items)) > reduce.max_bytes:
            items.pop()
        wanted = min(1 + draw % 3, reduce.max_items) if kind == "J" else 0
        return Send(weight, items=tuple(items), wanted=wanted)

    def _other_parts(self, consumer: int) -> list[ClaimPart]:
        """The second consumer claims from several slots at once."""
        return [ClaimPart(1, 1, owner=self._owner())] * consumer

    # what must hold

    @invariant()
    def each_send_is_in_one_place(self) -> None:
        state = read_state(self.client, self.keys, True)
        values = [*state.body.values(), *state.held.values(), *state.dead_body.values()]
        found = [each for each in map(read_record, values) if each is not None]
        assert sum(each.count for each in found) + self.model.gone.total() == self.accepted
        assert self.accepted == state.totals.get("accepted", 0)
        if self.model.kind == "C":
            there = [item for each in found for item in each.items]
            places = Counter(there + self.model.gone_items)
            assert places == Counter(self.accepted_items)
            assert set(places.values()) <= {1}
