"""Messages that fold before they are sent: their batches are bounded by what is held, not by what is left of it."""

from __future__ import annotations

import pytest

from rmq import Collect, Fixed, Merge, RangeMergeMessage, Sum, Topic, TopicType
from rmq._model.batches import Batch
from rmq._model.merging import Reducer
from tests.support.core import encode


def topic_of(reduce: Reducer) -> Topic:
    return Topic("t", TopicType.RANGE_MERGE, merge=Merge(reduce, window=Fixed("1s")))


@pytest.mark.parametrize(("reduce", "body"), [(Sum(), 1), (Collect(max_items=8), b"x" * 100)], ids=["sum", "collect"])
def test_a_batch_knows_its_bytes_and_the_messages_that_it_holds(reduce: Reducer, body: int | bytes) -> None:
    topic, batch, size_bytes = topic_of(reduce), Batch(0), 0
    sent = [RangeMergeMessage(f"k{number % 3}", body=body) for number in range(60)]
    for number, message in enumerate(sent):
        encoded = encode(topic, message)
        added = batch.fold(topic, encoded, message)
        if added is None:
            added = batch.add(encoded, message)
        size_bytes += added
        assert size_bytes == batch.size_bytes == sum(len(each.content) + len(each.body or b"") for each in batch)
        assert batch.taken == len(batch.originals()) == number + 1
    assert len(batch) == (3 if isinstance(reduce, Sum) else 9)
    assert sorted(map(id, batch.originals())) == sorted(map(id, sent))
