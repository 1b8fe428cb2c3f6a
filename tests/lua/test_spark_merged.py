"""Streaming queries on topics that merge: every send is in one value, whatever becomes of batches and their drivers."""

from __future__ import annotations

from collections import Counter
from itertools import chain, count, repeat
from random import Random

import pytest

from rmq import Collect, Max, Merge, Redriven, Sum, TopicType
from rmq.spark import calls
from rmq.spark.calls import Chunk, Driver, Reading, Settled
from tests.conftest import MakeSlot
from tests.support.core import EncodedMessage, Nack, Record, framed, query_keys, read_record, write_record
from tests.support.slots import SlotState, SlotUnderTest

FIRST, SECOND, THIRD = (Driver("q1", generation) for generation in (1, 2, 3))
LEASE_MS = 62_000
CONTENTS = [b"a", b"b", b"c", b"d"]


def add(slot: SlotUnderTest, content: bytes, number: float, score: int = 5_000) -> None:
    """Send a number."""
    kind = slot.topic.merge.kind if slot.topic.merge else ""
    slot.send((content, score, write_record(Record(1, 0, 0, number, kind))))


def read(slot: SlotUnderTest, driver: Driver = FIRST, seq: int = 1, max_replays: int = 10) -> Chunk:
    return slot.run(calls.read(slot.topic, Reading(driver, seq, 1_000, max_replays, False), 0, 0, 1_000))


def settle(slot: SlotUnderTest, driver: Driver = FIRST, seq: int = 1) -> Settled:
    return slot.run(calls.settle(slot.topic, 0, driver, seq, 0, "ack"))


def records(values: dict[bytes, bytes]) -> dict[bytes, tuple[float, int]]:
    """Return content -> number and count."""
    found = {content: read_record(value) for content, value in values.items()}
    return {content: (record.number, record.count) for content, record in found.items() if record is not None}


def seen(chunk: Chunk) -> dict[bytes, tuple[float, int]]:
    bodies = chunk.bodies or repeat(None)
    return records({content: body for content, body in zip(chunk.contents, bodies, strict=False) if body})


@pytest.fixture
def sums(make_slot: MakeSlot) -> SlotUnderTest:
    return make_slot(TopicType.PRIORITY, merge=Merge(Sum()))


def test_a_chunk_holds_its_values_apart_and_an_ack_drops_them(sums: SlotUnderTest) -> None:
    add(sums, b"a", 3)
    add(sums, b"a", 4)
    first = read(sums)
    assert seen(first) == {b"a": (7, 2)}
    add(sums, b"a", 10)
    state = sums.state()
    assert (records(state.held), records(state.body)) == ({b"a": (7, 2)}, {b"a": (10, 1)})
    assert read(sums) == first, "the same again, whatever was sent meanwhile"
    assert settle(sums) == Settled(1, 0)
    state = sums.state()
    assert (state.held, records(state.body), state.totals["acked"]) == ({}, {b"a": (10, 1)}, 1)
    assert not sums.client.exists(query_keys(sums.topic.name, 0, "q1").body)
    assert seen(read(sums, seq=2)) == {b"a": (10, 1)}


def test_a_new_driver_reads_the_same_values(sums: SlotUnderTest) -> None:
    add(sums, b"a", 3)
    add(sums, b"b", 5)
    first = read(sums)
    add(sums, b"a", 10)
    assert read(sums, SECOND) == first
    assert records(sums.state().held) == {b"a": (3, 1), b"b": (5, 1)}
    assert settle(sums, SECOND) == Settled(2, 0)
    assert records(sums.state().body) == {b"a": (10, 1)}


def test_what_a_sweep_put_back_is_taken_again_with_its_value(sums: SlotUnderTest) -> None:
    add(sums, b"a", 3)
    first = read(sums)
    sums.advance(LEASE_MS)
    sums.claim(0)
    assert records(sums.state().body) == {b"a": (3, 1)}
    assert read(sums, SECOND) == first
    state = sums.state()
    assert (state.body, records(state.held)) == ({}, {b"a": (3, 1)})


@pytest.mark.parametrize("kind", [TopicType.PRIORITY, TopicType.RANGE_MERGE])
def test_what_was_put_back_and_folded_since_is_another_message(kind: TopicType, make_slot: MakeSlot) -> None:
    slot = make_slot(kind, merge=Merge(Sum()))
    add(slot, b"a", 3)
    slot.advance(5_000)
    read(slot)
    slot.advance(LEASE_MS)
    slot.claim(0)
    add(slot, b"a", 10)
    assert seen(read(slot, SECOND)) == {}
    assert settle(slot, SECOND) == Settled(0, 0)
    slot.advance(5_000)
    assert seen(read(slot, SECOND, seq=2)) == {b"a": (13, 2)}


def test_a_lease_that_ends_beside_a_fresh_copy_folds_into_it(sums: SlotUnderTest) -> None:
    add(sums, b"a", 3)
    read(sums)
    add(sums, b"a", 10)
    sums.advance(LEASE_MS)
    sums.claim(0)
    state = sums.state()
    assert (records(state.body), state.held) == ({b"a": (13, 2)}, {})
    assert seen(read(sums, SECOND)) == {}
    assert settle(sums, SECOND) == Settled(0, 0)
    assert seen(read(sums, SECOND, seq=2)) == {b"a": (13, 2)}


def test_what_a_halved_batch_gives_back_folds_into_fresh_copies(sums: SlotUnderTest) -> None:
    for i, content in enumerate(CONTENTS):
        add(sums, content, i + 1, 9_000 - i)
    read(sums)
    add(sums, b"d", 100, 7_777)
    sums_before = Counter({name: number for name, (number, _) in {b"a": (1, 1), b"b": (2, 1)}.items()})
    call = calls.read(sums.topic, Reading(SECOND, 1, 4, 0, False), 0, 0, 4)
    assert Counter({name: number for name, (number, _) in seen(sums.run(call)).items()}) == sums_before
    state = sums.state()
    assert records(state.body) == {b"c": (3, 1), b"d": (104, 2)}
    assert state.store == {b"c": 8_998, b"d": 7_777}, "the one as it was, the other as it was sent anew"
    assert records(state.held) == {b"a": (1, 1), b"b": (2, 1)}
    assert settle(sums, SECOND) == Settled(2, 0, 2)
    assert sums.state().unaccounted == 0


def test_a_poisonous_message_dies_with_its_own_value_beside_a_fresh_copy(sums: SlotUnderTest) -> None:
    add(sums, b"a", 3)
    read(sums)
    add(sums, b"a", 10)
    assert read(sums, SECOND, max_replays=0).buried == 1
    state = sums.state()
    assert (records(state.dead_body), records(state.body), state.held) == ({b"a": (3, 1)}, {b"a": (10, 1)}, {})
    assert state.reason[b"a"]["type"] == "ReplaysUsedUp"
    read(sums, SECOND, seq=2)
    assert read(sums, THIRD, seq=2, max_replays=0).buried == 1
    assert records(sums.state().dead_body) == {b"a": (13, 2)}, "a second death folds into the first"
    assert sums.redrive("priority", 5_000, b"a") == [Redriven.DONE]
    assert records(sums.state().body) == {b"a": (13, 2)}


def test_numbers_survive_at_their_bounds(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, merge=Merge(Max()))
    largest = 1.7976931348623157e308
    add(slot, b"a", largest)
    add(slot, b"a", -largest)
    assert seen(read(slot)) == {b"a": (largest, 2)}
    assert seen(read(slot, SECOND)) == {b"a": (largest, 2)}


def test_1000_messages_are_held_given_back_and_buried_at_once(sums: SlotUnderTest) -> None:
    # pitfall 12
    names = [b"%04d" % i for i in range(1_000)]
    value = write_record(Record(1, 0, 0, 1, "S"))
    for _ in range(2):
        sums.send(*((name, 5_000, value) for name in names))
    assert len(read(sums).contents) == 1_000
    sums.send(*((name, 6_000, value) for name in names))
    call = calls.read(sums.topic, Reading(SECOND, 1, 1_000, 0, False), 0, 0, 1_000)
    assert len(sums.run(call).contents) == 500
    state = sums.state()
    assert Counter(records(state.body).values()) == {(3, 3): 500, (1, 1): 500}
    assert set(records(state.held).values()) == {(2, 2)}
    call = calls.read(sums.topic, Reading(THIRD, 1, 1_000, 0, False), 0, 0, 1_000)
    sums.run(call)
    assert sum(number for number, _ in records(sums.state().body | {b"held": b""}).values()) == 3 * 750 + 250
    assert sums.state().unaccounted == 0


class History:
    """Sends of items that no other send has, a query, and a rival, by chance; `gone` are the items that were acked."""

    def __init__(self, slot: SlotUnderTest, seed: int) -> None:
        self.slot, self.random = slot, Random(seed)
        self.sent: list[bytes] = []
        self.gone: list[bytes] = []
        self.items = map(b"%d".__mod__, count())
        self.driver, self.seq = FIRST, 1
        self.rows: dict[int, dict[bytes, tuple[bytes, ...]]] = {}
        self.theirs: dict[bytes, tuple[int, tuple[bytes, ...]]] = {}

    def run(self, steps: int) -> None:
        acts = [self.send] * 4 + [self.read] * 4 + [self.ack_batch, self.renew, self.restart, self.settle_theirs] * 2
        acts += [self.claim, self.claim, self.wait, self.wait, self.outlive, self.redrive]
        for _ in range(steps):
            act = self.random.choice(acts)
            act()
            self.check(act.__name__)

    def check(self, after: str) -> None:
        state = self.slot.state()
        there = chain.from_iterable(_items(each) for each in (state.body, state.held, state.dead_body))
        assert Counter(chain(chain.from_iterable(there), self.gone)) == Counter(self.sent), f"after {after}: {state}"
        assert (state.orphans, state.unaccounted) == ({}, 0), f"after {after}: {state}"
        assert self.counts(state) == len(self.sent) - len(self.gone)

    def counts(self, state: SlotState) -> int:
        found = [records(each).values() for each in (state.body, state.held, state.dead_body)]
        return sum(number for _, number in chain.from_iterable(found))

    def send(self) -> None:
        messages: list[EncodedMessage] = []
        for _ in range(self.random.randint(1, 3)):
            item = next(self.items)
            value = self.random.choice([1, 20]) if self.slot.topic.type.timed else self.random.randint(100, 200)
            body = write_record(Record(1, 0, 0, 1, "C", framed([item])))
            messages.append(EncodedMessage(0, self.random.choice(CONTENTS), value, body))
            self.sent.append(item)
        self.slot.send(*((each.content, each.value, each.body) for each in messages))

    def read(self) -> None:
        number, limit = self.random.randint(0, 1), 2
        reading = Reading(self.driver, self.seq, 2 * limit, 1, False)
        call = calls.read(self.slot.topic, reading, 0, number, limit, number * limit)
        chunk = self.slot.run(call)
        bodies = chunk.bodies or [None] * len(chunk.contents)
        rows = {name: _items({name: body})[0] for name, body in zip(chunk.contents, bodies, strict=True) if body}
        held = dict(zip(self.slot.state().held, _items(self.slot.state().held), strict=True))
        assert len(rows) == len(chunk.contents), "each has a value"
        assert all(held.get(name) == items for name, items in rows.items()), "it has what is held, all of it"
        self.rows[number] = rows

    def ack_batch(self) -> None:
        for number in (0, 1):
            before = self.slot.state()
            self.slot.run(calls.settle(self.slot.topic, 0, self.driver, self.seq, number, "ack"))
            self.book(before, self.rows.get(number, {}))
        self.slot.run(calls.settle(self.slot.topic, 0, self.driver, self.seq, -1, "ack"))
        self.seq, self.rows = self.seq + 1, {}

    def book(self, before: SlotState, given: dict[bytes, tuple[bytes, ...]]) -> None:
        """Note what an ack has dropped, in flight or put back by a sweep, which is what was handed over."""
        state = self.slot.state()
        for values, after in ((before.held, state.held), (before.body, state.body)):
            for name, items in zip(values, _items(values), strict=True):
                if name not in after:
                    assert given[name] == items, "nothing is acked that was not seen"
                    self.gone += items

    def renew(self) -> None:
        for number in (0, 1):
            self.slot.run(calls.settle(self.slot.topic, 0, self.driver, self.seq, number, "renew"))

    def restart(self) -> None:
        """The next driver may read its batch anew, or ack what Spark had committed under the last one."""
        self.driver = Driver("q1", self.driver.generation + 1)

    def claim(self) -> None:
        for claimed in self.slot.claim(self.random.randint(0, 2)).messages:
            self.theirs[claimed.content] = claimed.claim_score, _items({b"": claimed.body or b""})[0]

    def settle_theirs(self) -> None:
        for name, (score, items) in list(self.theirs.items()):
            verb = self.random.choice(["ack", "retry", "retry", "bury", "release"])
            if verb == "ack":
                if not self.slot.ack((name, score)):
                    self.gone += items
            elif verb == "release":
                self.slot.nack(Nack(name, score, "release", self.slot.now_ms if self.slot.topic.type.timed else 150))
            else:
                self.slot.nack(Nack(name, score, verb, self.random.choice([0, 3_000])))
        self.theirs = {}

    def wait(self) -> None:
        self.slot.advance(self.random.choice([1, 30, 4_000]))

    def outlive(self) -> None:
        self.slot.advance(LEASE_MS)

    def redrive(self) -> None:
        kind, value = ("after", 1) if self.slot.topic.type.timed else ("priority", 150)
        for name in self.slot.state().dead:
            self.slot.redrive(kind, value, name)


def _items(values: dict[bytes, bytes]) -> list[tuple[bytes, ...]]:
    return [record.items for record in map(read_record, values.values()) if record is not None]


@pytest.mark.parametrize("kind", [TopicType.PRIORITY, TopicType.RANGE_MERGE])
@pytest.mark.parametrize("seed", range(20))
def test_every_send_is_in_one_value_whatever_happens(kind: TopicType, seed: int, make_slot: MakeSlot) -> None:
    slot = make_slot(kind, merge=Merge(Collect()), max_retries=3)
    History(slot, seed).run(80)
