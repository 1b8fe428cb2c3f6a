"""Which batches of a `send_many` go together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import Topic, TopicType
from rmq._broker.claims import MAX_BATCH
from rmq._model.batches import Batch
from rmq._sending.batch_sender import BATCH, CALLS_IN_FLIGHT, ROUND, batch_size
from rmq._sending.pipeline import (
    BATCH_BYTES,
    JOINED_BYTES,
    JOINED_MESSAGES,
    JOINED_SLOTS,
    RoundLimits,
    ServerQueue,
    grouped,
)


def made(slot: int, messages: int, size_bytes: int) -> Batch:
    batch = Batch(slot, [b"a"] * messages, [1] * messages)
    batch.size_bytes = size_bytes
    return batch


batches = st.builds(
    made,
    st.integers(0, 5),
    st.sampled_from([1, 100, 300, BATCH]),
    st.sampled_from([1, BATCH_BYTES // 2, BATCH_BYTES, 17 * BATCH_BYTES]),
)


@given(st.lists(batches), st.sampled_from([1, 2, 100]))
def test_rounds_are_bounded_and_keep_the_order_of_each_slot(ready: list[Batch], calls: int) -> None:
    queue: ServerQueue = ServerQueue()
    expected: dict[int, list[Any]] = {}
    for batch in ready:
        queue.add(batch)
        expected.setdefault(batch.slot, []).append(batch)
    sent: dict[int, list[Any]] = {}
    while queue.waiting:
        round_ = queue.take_round(RoundLimits(ROUND.messages, ROUND.size_bytes, calls))
        slots = [batch.slot for batch in round_]
        assert calls >= len(set(slots)) == len(slots) > 0
        assert len(slots) == 1 or sum(len(batch) for batch in round_) <= CALLS_IN_FLIGHT * BATCH
        assert len(slots) == 1 or sum(batch.size_bytes for batch in round_) <= CALLS_IN_FLIGHT * BATCH_BYTES
        for batch in round_:
            sent.setdefault(batch.slot, []).append(batch)
    assert queue.number == 0
    assert {slot: [*map(id, found)] for slot, found in sent.items()} == {
        slot: [*map(id, found)] for slot, found in expected.items()
    }


small = st.builds(
    made,
    st.integers(0, 999),
    st.sampled_from([1, 2, JOINED_MESSAGES, JOINED_MESSAGES + 1, BATCH]),
    st.sampled_from([1, JOINED_BYTES // 30, JOINED_BYTES - 1, JOINED_BYTES, JOINED_BYTES + 1]),
)


@given(st.lists(small, max_size=99))
def test_small_batches_share_calls_and_large_ones_have_their_own(round_: list[Batch]) -> None:
    groups = grouped(round_)
    assert [id(batch) for group in groups for batch in group] == [*map(id, round_)]
    for group in groups:
        assert 1 <= len(group) <= JOINED_SLOTS
        if len(group) > 1:
            assert all(len(batch) <= JOINED_MESSAGES for batch in group)
            assert sum(batch.size_bytes for batch in group) <= JOINED_BYTES


def test_one_message_each_for_many_slots_makes_few_calls() -> None:
    round_ = [made(slot, 1, 20) for slot in range(100)]
    assert [len(group) for group in grouped(round_)] == [32, 32, 32, 4]


@pytest.mark.parametrize(
    ("slots", "max_backlog", "expected"),
    [(1, None, MAX_BATCH), (2, None, MAX_BATCH), (4, None, BATCH), (64, None, BATCH), (1, 750, BATCH)],
)
def test_few_slots_get_larger_calls_unless_a_bound_would_refuse_them(
    slots: int, max_backlog: int | None, expected: int
) -> None:
    assert batch_size(Topic("t", TopicType.PRIORITY, slots=slots, max_backlog=max_backlog)) == expected
