"""Where a cluster's hash slots are. Expected hash slots come from the Redis Cluster specification and from a server."""

from __future__ import annotations

import pytest

from rmq._servers.cluster_map import HASH_SLOTS, Redirect, SlotMap, hash_slot, parse_redirect, parse_slot_map
from rmq._servers.urls import Address

A, B = Address("10.0.0.1", 7000), Address("10.0.0.2", 7000)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("123456789", 0x31C3),  # the specification's check value
        ("foo", 12_182),
        ("{user1000}.following", hash_slot("user1000")),
        ("foo{}{bar}", hash_slot(b"foo{}{bar}")),
        ("foo{{bar}}zap", hash_slot("{bar")),
        ("foo{bar}{zap}", hash_slot("bar")),
        ("prepare{topic_3}", hash_slot("topic_3")),
    ],
)
def test_hash_slot(key: str, expected: int) -> None:
    assert hash_slot(key) == expected == hash_slot(key.encode())


def test_an_empty_tag_is_none() -> None:
    assert hash_slot("foo{}{bar}") != hash_slot("bar")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("MOVED 3999 10.0.0.2:7000", Redirect(3_999, B, once=False)),
        ("ASK 3999 10.0.0.2:7000", Redirect(3_999, B, once=True)),
        ("MOVED 1 :7000", Redirect(1, A, once=False)),
        ("MOVED 1 [::1]:7000", Redirect(1, Address("::1", 7_000), once=False)),
        ("MOVED 1 ::1:7000", Redirect(1, Address("::1", 7_000), once=False)),
        ("TRYAGAIN Multiple keys request during rehashing of slot", None),
        ("MOVED 1 ?:7000", Redirect(1, A, once=False)),
        ("MOVED nonsense", None),
        ("MOVED 16384 10.0.0.2:7000", None),
        ("MOVED 1 10.0.0.2:70000", None),
        (f"MOVED 1 10.0.0.2:{'9' * 5_000}", None),
        ("MOVED 1 a/b?x=1:7000", None),
    ],
)
def test_redirects(message: str, expected: Redirect | None) -> None:
    assert parse_redirect(message, A) == expected


def test_the_reply_of_cluster_slots() -> None:
    reply = [
        [0, 8_191, [b"10.0.0.1", 7_000, b"id"], [b"10.0.0.3", 7_000, b"id"]],
        [8_192, 16_000, [None, 7_001, b"id", [b"hostname", b"?"]]],
    ]
    found = parse_slot_map(reply, B)
    assert (found.owners[0], found.owners[8_191], found.owners[8_192]) == (A, A, Address("10.0.0.2", 7_001))
    assert found.owners[16_001:] == (None,) * (HASH_SLOTS - 16_001)
    assert found.masters == (A, Address("10.0.0.2", 7_001))
    assert found.replicas == (Address("10.0.0.3", 7_000),)


def test_a_moved_hash_slot() -> None:
    moved = SlotMap((A,) * HASH_SLOTS, (A,)).moved(Redirect(5, B, once=False))
    assert (moved.owners[4], moved.owners[5], moved.owners[6], moved.masters) == (A, B, A, (A, B))


@pytest.mark.parametrize(
    "reply",
    [7, [7], [[]], [[0, 1]], [[0, b"1", [b"h", 1]]], [[0, HASH_SLOTS, [b"h", 1]]], [[2, 1, [b"h", 1]]],
     [[0, 1, 7]], [[0, 1, [b"h"]]], [[0, 1, [b"a b", 1]]], [[0, 1, [b"h", 70_000]]]],
)  # fmt: skip
def test_what_is_no_slot_map_is_refused(reply: object) -> None:
    with pytest.raises(ValueError, match=r"is not an? |not enough values"):
        parse_slot_map(reply, A)
