"""No session owns more slots than ZooKeeper can write down when it ends."""

from __future__ import annotations

from random import Random

from rmq._ownership.assignment import SESSION_BYTES, SessionBudget, Share, assign, assign_within
from rmq._ownership.leading import decide
from rmq._ownership.machine import WorkerMachine
from rmq._ownership.values import SlotKey, Stat, WorkerDocument

JUTE_MAXBUFFER = 1_048_575
SESSION = 7


def closing_bytes(chroot: str, worker: str, slots: list[SlotKey]) -> int:
    """What the transaction says that ends a session: each path with four bytes in front."""
    paths = [f"/workers/{worker}", "/leader", *(f"/owners/{topic}/{slot}" for topic, slot in slots)]
    return 32 + 4 + sum(4 + len(chroot) + len(path) for path in paths)


def test_the_default_fits_the_buffer_that_every_zookeeper_has() -> None:
    for name in ("t" * 13, "t" * 128):
        chroot = "/" + "c" * 200
        budget = SessionBudget(SESSION_BYTES, "w" * 128, chroot)
        slots = list(budget.fit((), [(name, slot) for slot in range(65_536)]))
        assert SESSION_BYTES - 2_000 < closing_bytes(chroot, "w" * 128, slots) <= SESSION_BYTES < JUTE_MAXBUFFER


def machine(limit: int, assigned: set[SlotKey]) -> WorkerMachine:
    machine = WorkerMachine(9.0, 5.0, budget=SessionBudget(limit, "w"))
    machine.contacted(SESSION, 0.0)
    machine.observed(SESSION, assigned, (), {}, 0.0)
    return machine


def test_a_worker_acquires_no_more_than_its_session_holds_low_numbers_of_all_topics_first() -> None:
    budget = SessionBudget(0, "w")
    room_for_six = -budget.room + 600 + 6 * budget.slot_bytes(("a", 1))
    limit = 256 + 4 + len("/workers/w") + 4 + len("/leader") + 6 * budget.slot_bytes(("a", 1))
    assert room_for_six > 0
    held = machine(limit, {(topic, slot) for topic in "ab" for slot in range(5)})
    plan = held.plan(0.0)
    assert plan.acquire == (("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2))
    assert held.left_out == 4


def test_what_is_held_draining_or_perhaps_ours_counts() -> None:
    one = SessionBudget(10_000, "w").slot_bytes(("a", 1))
    limit = 10_000 - SessionBudget(10_000, "w").room + 3 * one
    assigned = {("a", slot) for slot in range(3)}
    held = machine(limit, assigned)
    for key in held.plan(0.0).acquire:
        held.acquired(key, Stat(100, 0, SESSION))
    held.observed(SESSION, {("b", 0), ("b", 1)}, assigned, {}, 1.0)  # all three are to be drained first
    assert held.plan(1.0).acquire == ()
    assert held.left_out == 2
    held.drained(("a", 0))
    (gone,) = held.plan(1.0).release
    held.released(gone)
    assert held.plan(1.0).acquire == (("b", 0),)
    assert held.plan(1.0).acquire == ()  # the first one's reply may be under way


def shares(*names: str, topics: str = "a", weight: int = 1) -> dict[str, Share]:
    return {name: Share(frozenset(topics), weight) for name in names}


def counts(owners: tuple[str | None, ...]) -> dict[str | None, int]:
    return {owner: owners.count(owner) for owner in set(owners)}


def test_what_one_worker_cannot_hold_goes_to_those_who_can() -> None:
    workers = shares("big", weight=10) | shares("b", "c")
    result = assign_within({"a": 60}, workers, {}, {"big": 100, "b": 1_000, "c": 1_000}, {"a": 10})
    assert counts(result["a"]) == {"big": 10, "b": 25, "c": 25}


def test_without_room_anywhere_a_slot_has_no_owner() -> None:
    result = assign_within({"a": 8, "b": 8}, shares("w", topics="ab"), {}, {"w": 60}, {"a": 10, "b": 10})
    assert result == {"a": ("w",) * 3 + (None,) * 5, "b": ("w",) * 3 + (None,) * 5}
    more = assign_within(
        {"a": 8, "b": 8}, shares("w", "v", topics="ab"), result, {"w": 60, "v": 60}, {"a": 10, "b": 10}
    )
    assert all(old in (new, None) for topic in "ab" for old, new in zip(result[topic], more[topic], strict=True))
    assert sum(owner is None for topic in more.values() for owner in topic) == 4


def test_without_limits_it_is_the_plain_assignment() -> None:
    workers = shares("x", "y", "z", topics="ab")
    topics = {"a": 16, "b": 5}
    assert assign_within(topics, workers, {}, {}, {"a": 1, "b": 1}) == assign(topics, workers, {})


def test_random_clusters_stay_within_their_room_and_come_to_rest() -> None:
    for seed in range(300):
        random = Random(seed)
        topics = {f"t{number}": random.choice((1, 4, 16, 33)) for number in range(random.randint(1, 4))}
        slot_bytes = {topic: random.randint(20, 40) for topic in topics}
        workers = {
            f"w{number}": Share(
                frozenset(random.sample(sorted(topics), random.randint(1, len(topics)))), random.choice((1, 1, 3))
            )
            for number in range(random.randint(1, 5))
        }
        rooms = {name: random.randint(0, 900) for name in workers if random.random() < 0.8}
        present: dict[str, tuple[str | None, ...]] = {}
        for _ in range(6):
            before, present = present, assign_within(topics, workers, present, rooms, slot_bytes)
            for name, room in rooms.items():
                taken = sum(owners.count(name) * slot_bytes[topic] for topic, owners in present.items())
                assert taken <= room, seed
            for topic, owners in present.items():
                for name, share in workers.items():
                    if None in owners and topic in share.topics:  # then none who consumes it has room for one more
                        taken = sum(each.count(name) * slot_bytes[place] for place, each in present.items())
                        assert name in rooms, seed
                        assert taken + slot_bytes[topic] > rooms[name], seed
        assert present == before, f"seed {seed} does not come to rest"


def test_the_leader_counts_the_room_that_workers_state_and_without_one_there_is_no_limit() -> None:
    leader = SessionBudget(SESSION_BYTES, "w0")
    room = 3 * leader.topic_bytes("t", 10)
    assignment = decide({"w0": WorkerDocument({"t": 10}, room=room)}, {"t": 10}, None, leader)
    assert counts(assignment.topics["t"]) == {"w0": 3, None: 7}
    unlimited = decide({"w0": WorkerDocument({"t": 10})}, {"t": 10}, None, leader)
    assert counts(unlimited.topics["t"]) == {"w0": 10}


def test_a_worker_document_keeps_its_room() -> None:
    document = WorkerDocument({"a": 4}, room=77)
    assert WorkerDocument.from_json(document.to_json()) == document


def test_how_many_workers_some_topics_need() -> None:
    budget = SessionBudget(SESSION_BYTES, "w", "/rmq")
    assert budget.workers_needed({"orders": 64}) == 1
    assert budget.workers_needed({f"topic-{n:07}": 16_384 for n in range(4)}) == 3
