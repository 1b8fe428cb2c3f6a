"""Scripts fold as Python does, wherever they do; and to fold before a send changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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
    PriorityRule,
    Replace,
    Sliding,
    Sum,
    Topic,
    TopicType,
)
from tests.support.core import (
    EncodedMessage,
    Nack,
    Record,
    Reducer,
    fold,
    fold_messages,
    framed,
    read_record,
    sends,
    slot_keys,
    wanting,
    wrap,
    write_record,
)
from tests.support.slots import T0, SlotState, SlotUnderTest, read_state

WIDE = Collect(max_items=100_000, max_bytes=1_048_576)
WIDE_SET = replace(WIDE, max_items=5_000, unique=True)
MERGES: dict[str, Merge] = {
    "K": Merge(Keep()),
    "R": Merge(Replace()),
    "N": Merge(Newest()),
    "X": Merge(Max()),
    "I": Merge(Min()),
    "S": Merge(Sum()),
    "C": Merge(WIDE),
    "U": Merge(WIDE_SET),
    "J": Merge(WIDE_SET, max_count=PER_MESSAGE),
}

bodies = st.none() | st.binary(max_size=9) | st.sampled_from([b"\x00rm1", wrap(None, "00-1"), wrap(b"b", "00-2")])
parts = st.sampled_from([b"", b"a", b"\x01\x00\x00\x00a", framed([b"a"]), framed([b"", b"a"]), b"\x00\x00\x00\x00"])
items = st.lists(parts | st.binary(max_size=6), max_size=6)
exact = st.integers(-(2**40), 2**40) | st.integers(-(2**20), 2**20).map(lambda number: number / 1024)
numbers = exact | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def records(draw: st.DrawFn, kind: str) -> Record:
    number, value = 0, b""
    if kind in "KRN":
        body = draw(bodies)
        value = b"" if body is None else b"=" + body
        number = draw(st.integers(0, 3)) if kind == "N" else 0
    elif kind in "XIS":
        number = draw(exact if kind == "S" else numbers)
    else:
        found = draw(items) if kind == "C" else list(dict.fromkeys(draw(items)))
        number, value = len(found), (wanting(draw(st.integers(1, 9))) if kind == "J" else b"") + framed(found)
    first, lasted = draw(st.sampled_from([T0 - 5_000, T0, T0 + 5_000])), draw(st.integers(0, 9_000))
    return Record(draw(st.integers(1, 2**31)), first, first + lasted, number, kind, value)


pairs = st.sampled_from("KRNXISCUJ").flatmap(lambda kind: st.tuples(records(kind), records(kind)))
mixed = st.tuples(*[st.sampled_from("KRNXISCUJ").flatmap(records)] * 2)


@pytest.fixture(scope="module")
def slots(redis_url: str) -> Iterator[dict[str, SlotUnderTest]]:
    """A slot of a topic of each kind."""
    slots = {
        kind: SlotUnderTest(
            f"{redis_url}?db=3", Topic(f"fold-{kind}", TopicType.RANGE_MERGE, merge=merge, max_retries=3)
        )
        for kind, merge in MERGES.items()
    }
    yield slots
    for slot in slots.values():
        slot.client.flushdb()
        slot.close()


def emptied(slots: dict[str, SlotUnderTest], newer: Record) -> SlotUnderTest:
    slot = slots[newer.kind]
    slot.client.flushdb()
    slot.set_clock(T0)
    return slot


@pytest.mark.hypothesis
@given(both=pairs | mixed)
@example(both=(Record(1, T0, T0, 5, "N", b"=first"), Record(1, T0, T0, 5, "N", b"=last")))  # of equal versions
def test_a_send_folds_as_python_does(both: tuple[Record, Record], slots: dict[str, SlotUnderTest]) -> None:
    older, newer = both
    slot = emptied(slots, newer)
    slot.seed(SlotState(store={b"c": T0 + 500}, body={b"c": write_record(older)}))
    slot.send((b"c", 500, write_record(replace(newer, first_ms=0, last_ms=0))))
    found = read_record(slot.state().body[b"c"])
    assert found == fold(older, replace(newer, first_ms=T0, last_ms=T0))


@pytest.mark.hypothesis
@given(both=pairs | mixed)
def test_flights_and_the_dead_fold_as_python_does(both: tuple[Record, Record], slots: dict[str, SlotUnderTest]) -> None:
    older, newer = both
    slot = emptied(slots, newer)
    old, new, claimed = write_record(older), write_record(newer), slot.claim_score(2)
    slot.seed(
        SlotState(
            store={b"back": T0 + 500, b"wait": 1, b"redriven": T0 + 500},
            prepare={b"back": claimed, b"dies": claimed},
            retry={b"wait": (T0 // 1000 + 5) * 1000 + 2},
            dead={b"dies": T0, b"redriven": T0},
            body={b"back": new, b"wait": new, b"redriven": new},
            held={b"back": old, b"wait": old, b"dies": new},
            dead_body={b"dies": old, b"redriven": old},
        )
    )
    slot.nack(Nack(b"back", claimed, "retry", 0, "E", "m"), Nack(b"dies", claimed, "bury", 0, "E", "m"))
    slot.redrive("after", 500, b"redriven")
    (taken,) = slot.claim(1).messages
    state = slot.state()
    values = state.body[b"back"], state.dead_body[b"dies"], state.body[b"redriven"], taken.body
    assert taken.content == b"wait"
    assert [read_record(value) for value in values] == [fold(older, newer)] * 4
    assert state.held == {b"wait": taken.body}


# folding before a send

reducers: st.SearchStrategy[Reducer] = st.sampled_from([merge.reduce for merge in MERGES.values()])
windows = st.sampled_from(
    [None, Fixed("500ms"), Sliding("500ms", max_wait="1s500ms"), Leading("500ms"), Leading("500ms", False)]
)
drawn_merges = st.builds(
    Merge, reducers, windows, st.sampled_from([None, None, 2, 3, 5]), st.sampled_from(list(PriorityRule))
) | st.builds(Merge, st.just(WIDE_SET), st.none(), st.just(PER_MESSAGE))
kinds = st.sampled_from([TopicType.RANGE_MERGE, TopicType.FIXED_TIME, TopicType.PRIORITY])


@st.composite
def topics_and_sends(draw: st.DrawFn) -> tuple[TopicType, Merge, list[list[tuple[bytes, int, Record]]]]:
    kind, merge = draw(kinds), draw(drawn_merges)
    if kind is not TopicType.RANGE_MERGE:
        merge = replace(merge, window=None, max_count=None)
    if kind is not TopicType.PRIORITY:
        merge = replace(merge, priority=PriorityRule.LAST)
    send = st.tuples(st.sampled_from([b"a", b"b"]), st.integers(1, 3_000), records(merge.kind).filter(bool))
    return kind, merge, draw(st.lists(st.lists(send, min_size=1, max_size=5), min_size=1, max_size=3))


@pytest.mark.hypothesis
@given(drawn=topics_and_sends(), step_ms=st.sampled_from([0, 200, 700]))
def test_messages_that_fold_before_they_are_sent_leave_the_same(
    drawn: tuple[TopicType, Merge, list[list[tuple[bytes, int, Record]]]], step_ms: int, slots: dict[str, SlotUnderTest]
) -> None:
    kind, merge, calls = drawn
    slot = slots["K"]
    found: list[SlotState] = []
    for folded in (False, True):
        topic = Topic("folded" if folded else "plain", kind, merge=merge)
        send = sends.send_calls(topic)
        slot.client.flushdb()
        slot.set_clock(T0)
        for call in calls:
            due = slot.now_ms if kind is TopicType.FIXED_TIME else 0
            encoded = [EncodedMessage(0, content, due + value, sent(record)) for content, value, record in call]
            for message in fold_messages(topic, encoded) if folded else encoded:
                slot.run(send(0, [message]))
            slot.advance(step_ms)
        found.append(read_state(slot.client, slot_keys(topic.name, 0), True))
    assert found[0] == found[1]


def sent(record: Record) -> bytes:
    """A record on its way."""
    return write_record(replace(record, first_ms=0, last_ms=0))
