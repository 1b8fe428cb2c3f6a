"""What is settled or renewed together stays within the bounds of a script call."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rmq import Delivery, Topic, TopicType
from rmq._claiming.chunks import bytes_of, chunks
from rmq._model.replies import Claimed

TOPIC = Topic("t", TopicType.PRIORITY)


class Nobody:
    """Holds deliveries that are never settled."""


def delivery(content: bytes, body: bytes | None) -> Delivery:
    return Delivery(TOPIC, 0, Claimed(content, 50, 1_790_000_000_000_016, body), 0, 0.0, Nobody())  # pyright: ignore[reportArgumentType]


SIZES = st.lists(st.tuples(st.integers(1, 9), st.none() | st.integers(0, 9)), max_size=30)


@given(SIZES, st.integers(1, 5), st.integers(1, 20))
def test_all_come_once_in_their_order_and_each_portion_is_bounded_and_full(
    sizes: list[tuple[int, int | None]], most: int, most_bytes: int
) -> None:
    all_ = [delivery(b"c" * content, None if body is None else b"b" * body) for content, body in sizes]

    def weight(part: list[Delivery]) -> int:
        return sum(len(each.name) for each in part)

    parts = [list(part) for part in chunks(all_, most, most_bytes=most_bytes)]
    assert [each for part in parts for each in part] == all_
    assert all(0 < len(part) <= most for part in parts)
    assert all(len(part) == 1 or weight(part) <= most_bytes for part in parts)
    for part, following in pairwise(parts):
        assert len(part) == most or weight([*part, following[0]]) > most_bytes


@given(SIZES, st.integers(1, 5), st.integers(1, 20))
def test_where_a_call_deletes_bodies_these_bound_it_too(
    sizes: list[tuple[int, int | None]], most: int, most_freed: int
) -> None:
    all_ = [delivery(b"c" * content, None if body is None else b"b" * body) for content, body in sizes]
    parts = [list(part) for part in chunks(all_, most, most_freed=most_freed)]
    assert [each for part in parts for each in part] == all_
    assert all(0 < len(part) <= most for part in parts)
    assert all(len(part) == 1 or bytes_of(part) <= most_freed for part in parts)
    for part, following in pairwise(parts):
        assert len(part) == most or bytes_of([*part, following[0]]) > most_freed
