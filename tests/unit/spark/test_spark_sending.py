"""How a sink's task cuts what it sends into chunks."""

from __future__ import annotations

import pytest

from rmq._model.batches import EncodedMessage
from rmq._sending.pipeline import BATCH_BYTES
from rmq.spark.sink.sender import cut


def row(content: bytes, body_bytes: int = 0) -> EncodedMessage:
    return EncodedMessage(0, content, 5_000, bytes(body_bytes) if body_bytes else None)


@pytest.mark.parametrize(
    ("sizes", "most", "wanted"),
    [
        ([], 10, []),
        ([1] * 10, 10, [10]),
        ([1] * 11, 10, [10, 1]),
        ([BATCH_BYTES // 2 - 10] * 5, 10, [2, 2, 1]),
        ([1, 2 * BATCH_BYTES, 1, 1], 10, [1, 1, 2]),
        ([2 * BATCH_BYTES], 10, [1]),
    ],
)
def test_chunks_are_bounded_in_number_and_in_bytes(sizes: list[int], most: int, wanted: list[int]) -> None:
    rows = [row(b"m%06d" % index, size) for index, size in enumerate(sizes)]
    chunks = list(cut(rows, most))
    for chunk in chunks:
        assert chunk.size_bytes == sum(len(message.content) + len(message.body or b"") for message in chunk)
    assert [len(chunk) for chunk in chunks] == wanted
    assert [each for chunk in chunks for each in chunk] == rows
