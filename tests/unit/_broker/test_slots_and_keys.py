"""Where a message lives: its slot, the names of the slot's keys, and the place of both in a Redis Cluster."""

from __future__ import annotations

from dataclasses import astuple

from crcmod.predefined import mkPredefinedCrcFun
from hypothesis import given
from hypothesis import strategies as st

from rmq import Topic, TopicType
from rmq._broker.keys import slot_keys
from rmq._model.topics import MAX_SLOTS, slot_of

names = st.from_regex(r"[A-Za-z0-9._-]{1,128}", fullmatch=True)
powers = st.integers(0, 14).map(lambda power: 2**power)


crc32 = mkPredefinedCrcFun("crc-32")
xmodem = mkPredefinedCrcFun("xmodem")
"""An implementation of the checksums that shares nothing with `zlib` or Redis; the design names it, `crcmod`."""


def test_the_checksums_are_those_of_the_specifications() -> None:
    assert crc32(b"123456789") == 0xCBF43926
    assert xmodem(b"123456789") == 0x31C3


def cluster_slot(key: str) -> int:
    """Redis Cluster's hash slot, as its specification says."""
    raw = key.encode()
    start = raw.find(b"{")
    end = raw.find(b"}", start + 1)
    tag = raw[start + 1 : end] if start >= 0 and end > start + 1 else raw
    return xmodem(tag) % 16_384


@given(st.binary(min_size=1), powers)
def test_the_slot_is_the_crc32_modulo_the_number_of_slots(content: bytes, slots: int) -> None:
    assert slot_of(content, slots) == crc32(content) % slots
    assert Topic("t", TopicType.PRIORITY, slots=slots).slot_of(content) == crc32(content) % slots


def test_the_crc_is_that_of_java_and_spark() -> None:
    assert slot_of(b"123456789", MAX_SLOTS) == 0xCBF43926 % MAX_SLOTS


@given(names, st.integers(0, MAX_SLOTS - 1))
def test_all_keys_of_a_slot_share_one_hash_slot_of_a_cluster(topic: str, slot: int) -> None:
    # pitfall 23
    keys = astuple(slot_keys(topic, slot))
    assert {cluster_slot(key) for key in keys} == {xmodem(f"{topic}_{slot}".encode()) % 16_384}


@given(st.lists(st.tuples(names, st.integers(0, MAX_SLOTS - 1)), min_size=2, max_size=2, unique=True))
def test_no_two_slots_share_a_key(slots: list[tuple[str, int]]) -> None:
    first, second = (set(astuple(slot_keys(*slot))) for slot in slots)
    assert len(first) == len(second) == 16
    assert not first & second


def test_the_names_are_those_of_the_contract() -> None:
    keys = slot_keys("price-image", 3)
    assert (keys.store, keys.prepare, keys.retry, keys.dead, keys.body, keys.meta, keys.wake) == (
        "price-image_3",
        "prepare{price-image_3}",
        "retry{price-image_3}",
        "dead{price-image_3}",
        "body{price-image_3}",
        "meta{price-image_3}",
        "wake{price-image_3}",
    )
    assert (keys.error, keys.reason, keys.dead_body) == (
        "error{price-image_3}",
        "reason{price-image_3}",
        "deadbody{price-image_3}",
    )
