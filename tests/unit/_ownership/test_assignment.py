"""The assignment is balanced, sticky and moves as little as balance allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st

from rmq._ownership.assignment import Owners, Share, assign, spread_slots


def shares(names: list[str], topics: list[str], weight: int = 1) -> dict[str, Share]:
    return {name: Share(frozenset(topics), weight) for name in names}


def counts(owners: Owners) -> dict[str | None, int]:
    return {owner: owners.count(owner) for owner in set(owners)}


def moves(before: Mapping[str, Owners], after: Mapping[str, Owners]) -> int:
    """Return how many slots have another owner than before; a slot that had none does not count."""
    return sum(
        old is not None and old != new
        for topic, owners in before.items()
        for old, new in zip(owners, after.get(topic, (None,) * len(owners)), strict=False)
    )


def test_no_worker_leaves_every_slot_without_owner() -> None:
    assert assign({"a": 4}, {}, {}) == {"a": (None,) * 4}


def test_a_topic_nobody_consumes_has_no_owner() -> None:
    result = assign({"a": 2, "b": 2}, {"w1": Share(frozenset({"a"}))}, {})
    assert result == {"a": ("w1", "w1"), "b": (None, None)}


def test_tenth_worker_moves_only_what_it_takes() -> None:
    # pitfall 39: kazoo's SetPartitioner moves 55 of 64 slots here.
    nine = shares([f"w{i}" for i in range(9)], ["a"])
    before = assign({"a": 64}, nine, {})
    after = assign({"a": 64}, nine | shares(["w9"], ["a"]), before)
    assert moves(before, after) == after["a"].count("w9") <= 7
    assert set(counts(after["a"]).values()) == {6, 7}


def test_a_leaving_worker_frees_only_its_own() -> None:
    ten = shares([f"w{i}" for i in range(10)], ["a"])
    before = assign({"a": 64}, ten, {})
    after = assign({"a": 64}, {name: share for name, share in ten.items() if name != "w3"}, before)
    assert all(old in (new, "w3") for old, new in zip(before["a"], after["a"], strict=True))
    assert moves(before, after) == before["a"].count("w3")


def test_many_small_topics_spread_over_all_workers() -> None:
    topics = {f"t{i}": 1 for i in range(40)}
    names = [f"w{i}" for i in range(4)]
    one = assign(topics, shares(names[:1], list(topics)), {})
    four = assign(topics, shares(names, list(topics)), one)
    owners = tuple(owner for topic in four.values() for owner in topic)
    assert set(counts(owners).values()) == {10}
    assert moves(one, four) == 30


def test_weights_share_in_proportion() -> None:
    workers = {"small": Share(frozenset({"a"}), 1), "large": Share(frozenset({"a"}), 3)}
    assert counts(assign({"a": 64}, workers, {})["a"]) == {"small": 16, "large": 48}


def test_a_leaving_worker_makes_others_hand_over_where_balance_wants_it() -> None:
    """With a share of 0.8 slots the large worker may have none; once its share is 1 it must have one."""
    workers = {"large": Share(frozenset({"a"}), 2)} | shares(["w1", "w2", "w3"], ["a"])
    before = {"a": ("w1", "w2")}
    assert assign({"a": 2}, workers, before) == before
    del workers["w3"]
    assert assign({"a": 2}, workers, before) == {"a": ("w1", "large")}


def test_foreign_entries_among_the_present_owners_are_passed_over() -> None:
    present = {"a": ("gone", "w1", None, "w1", "w1"), "old": ("w1",)}
    assert assign({"a": 4}, shares(["w1"], ["a"]), present) == {"a": ("w1",) * 4}


def test_a_worker_joins_63_others_on_1024_slots() -> None:
    workers = shares([f"w{i:02}" for i in range(64)], ["a"])
    before = assign({"a": 1024}, {name: share for name, share in workers.items() if name != "w07"}, {})
    assert set(counts(assign({"a": 1024}, workers, before)["a"]).values()) == {16}


@dataclass
class History:
    """Workers come and go; after each step the result is checked against the one before."""

    topics: dict[str, int]
    workers: dict[str, Share] = field(default_factory=dict[str, Share])
    owners: dict[str, Owners] = field(default_factory=dict[str, Owners])

    def step(self, worker: str, share: Share | None) -> None:
        before_workers, before = dict(self.workers), self.owners
        if share is None:
            self.workers.pop(worker, None)
        else:
            self.workers[worker] = share
        self.owners = assign(self.topics, self.workers, before)
        self.check_balance()
        assert assign(self.topics, dict(reversed(self.workers.items())), self.owners) == self.owners
        if len(self.topics) == 1:
            assert moves(before, self.owners) == self.fewest_moves(before)
            weights = {each.weight for each in before_workers.values()}
            if share is None and worker in before_workers and self.workers and len(weights) == 1:
                for old, new in zip(before["t0"], self.owners["t0"], strict=True):
                    assert old in (new, worker, None)
        if share is not None and worker not in before_workers:
            self.check_joined(worker)

    def fair(self, topic: str, worker: str) -> Fraction:
        weights = {name: share.weight for name, share in self.workers.items() if topic in share.topics}
        return Fraction(self.topics[topic] * weights.get(worker, 0), sum(weights.values()) or 1)

    def check_balance(self) -> None:
        for topic, owners in self.owners.items():
            assert len(owners) == self.topics[topic]
            consumed = any(topic in share.topics for share in self.workers.values())
            assert (None not in owners) is consumed
            for worker in self.workers:
                assert abs(owners.count(worker) - self.fair(topic, worker)) < 1
        for worker in self.workers:
            total = sum(owners.count(worker) for owners in self.owners.values())
            assert abs(total - sum(self.fair(topic, worker) for topic in self.topics)) < 1

    def check_joined(self, worker: str) -> None:
        for topic, owners in self.owners.items():
            assert owners.count(worker) <= ceil(self.fair(topic, worker))

    def fewest_moves(self, before: dict[str, Owners]) -> int:
        """In one topic: all of the gone, and what a worker holds above its fair share, rounded in the kindest way."""
        had = counts(before.get("t0", ()))
        had.pop(None, None)
        fair = {worker: self.fair("t0", worker) for worker in self.workers if "t0" in self.workers[worker].topics}
        spare = self.topics["t0"] - sum(int(share) for share in fair.values()) if fair else 0
        kept = sum(min(had.get(worker, 0), int(share)) for worker, share in fair.items())
        kept += min(spare, sum(had.get(worker, 0) > int(share) and share % 1 > 0 for worker, share in fair.items()))
        return sum(had.values()) - kept


NAMES = [f"w{i}" for i in range(7)]
WEIGHTS = st.sampled_from([1, 1, 1, 2, 3])
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.booleans(), WEIGHTS, st.integers(1, 31)), max_size=14)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 7), STEPS)
def test_histories_of_one_topic(power: int, steps: list[tuple[str, bool, int, int]]) -> None:
    history = History({"t0": 2**power})
    for worker, joins, weight, _ in steps:
        history.step(worker, Share(frozenset({"t0"}), weight) if joins else None)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 4, 8, 32]), min_size=2, max_size=5), STEPS)
def test_histories_of_several_topics(slots: list[int], steps: list[tuple[str, bool, int, int]]) -> None:
    history = History({f"t{i}": count for i, count in enumerate(slots)})
    for worker, joins, weight, mask in steps:
        topics = frozenset(f"t{i}" for i in range(5) if mask >> i & 1)
        history.step(worker, Share(topics, weight) if joins else None)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 4, 8, 32]), min_size=2, max_size=5), STEPS)
def test_leaving_moves_little_else(slots: list[int], steps: list[tuple[str, bool, int, int]]) -> None:
    """Several topics, equal workers: beyond the leaver's slots at most one a topic moves, to even out the totals."""
    topics = {f"t{i}": count for i, count in enumerate(slots)}
    workers: dict[str, Share] = {}
    owners: dict[str, Owners] = {}
    for worker, joins, _, _ in steps:
        if joins:
            workers[worker] = Share(frozenset(topics))
        else:
            workers.pop(worker, None)
        before, owners = owners, assign(topics, workers, owners)
        if not joins and workers:
            own = sum(slots.count(worker) for slots in before.values())
            assert moves(before, owners) <= own + len(topics)


def test_a_thread_that_is_full_gets_no_further_slot_while_others_are_free() -> None:
    assert spread_slots(range(4), 2, {0: 0}, full=[0]) == {0: 0, 1: 1, 2: 1, 3: 1}
    assert spread_slots(range(3), 2, {0: 0}, full=[0, 1]) == {0: 0, 1: 1, 2: 0}
