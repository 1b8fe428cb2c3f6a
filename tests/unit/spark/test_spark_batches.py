from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import Topic, TopicType
from rmq.errors import InvalidValueError
from rmq.spark.calls import CHUNK, Chunk
from rmq.spark.schema import QUEUE
from rmq.spark.source.batches import Batch, cut, share
from rmq.spark.source.reader import to_arrow

quotas = st.dictionaries(st.integers(0, 63), st.integers(1, 5 * CHUNK), max_size=20)
dues = st.dictionaries(st.integers(0, 63), st.integers(0, 10**9), max_size=20)


@given(quotas, st.booleans())
def test_an_offset_survives_the_checkpoint(quotas: dict[int, int], wary: bool) -> None:
    batch = Batch("q", 7, quotas, wary)
    assert Batch.from_offset(json.loads(json.dumps(batch.to_offset()))) == batch


@pytest.mark.parametrize("offset", [{}, {"v": 2, "qid": "q", "seq": 1, "q": {}}, {"v": 1, "qid": "q", "seq": 1}])
def test_a_foreign_offset_is_refused(offset: dict[str, object]) -> None:
    with pytest.raises(InvalidValueError, match="cannot be read as an offset of RMQ"):
        Batch.from_offset(offset)


@given(dues, st.one_of(st.none(), st.integers(0, 10**9)))
def test_a_limit_is_split_in_proportion(due: dict[int, int], limit: int | None) -> None:
    shares = share(due, limit)
    total = sum(due.values())
    assert sum(shares.values()) == (total if limit is None else min(limit, total))
    for slot, quota in shares.items():
        assert 0 < quota <= due[slot]
        if limit is not None and limit < total:
            assert abs(quota - due[slot] * limit / total) < 1.001


@given(quotas, st.integers(1, 50), st.integers(1, 50))
def test_a_cut_keeps_every_chunk_once(quotas: dict[int, int], least: int, most: int) -> None:
    batch = Batch("q", 1, quotas)
    partitions = cut(batch, least, most)
    parts = list(batch.parts())
    assert sorted(part for found in partitions for part in found) == parts
    assert sum(limit for _, _, limit, _ in parts) == batch.size
    for number, (_, _, _, before) in enumerate(parts):
        assert before == sum(limit for _, _, limit, _ in parts[:number])
    assert all(partitions), "no partition is empty"
    assert len(partitions) <= max(most, least)
    assert len(partitions) >= min(least, len(parts))
    if least == 1 and parts:
        owners = [{part[0] for part in found} for found in partitions]
        assert sum(map(len, owners)) == len(batch.quotas), "slots stay whole, so that their order holds"


def test_a_small_batch_is_one_task() -> None:
    assert len(cut(Batch("q", 1, dict.fromkeys(range(64), 3)))) == 1
    assert len(cut(Batch("q", 1, dict.fromkeys(range(8), 10 * CHUNK)))) == 8
    assert len(cut(Batch("q", 1, {0: 10 * CHUNK}), least=4)) == 4
    assert len(cut(Batch("q", 1, dict.fromkeys(range(8), CHUNK)), most=2)) == 2


@pytest.mark.parametrize(
    ("settings", "scores", "priorities"),
    [
        ({"ties": "any"}, [16, 17, 2**53 - 1], [None, 17, 2**53 - 1]),
        ({"max_priority": 5}, [16, 17, 2**51 - 1, 5 * 2**50 + 7, 6 * 2**50], [None, 5, 1, 5, 5]),
    ],
)
def test_a_row_has_the_priority_that_its_score_says(
    settings: dict[str, Any], scores: list[int], priorities: list[int | None]
) -> None:
    topic = Topic("t", TopicType.PRIORITY, **settings)
    chunk = Chunk(len(scores), 0, 0, [b"m"] * len(scores), scores, None)
    rows = to_arrow(QUEUE, topic, [(0, chunk)])
    assert (rows["score"].to_pylist(), rows["priority"].to_pylist()) == (scores, priorities)
