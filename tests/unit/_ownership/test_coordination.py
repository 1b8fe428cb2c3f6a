"""The pure parts of the coordination: machine, rounds, leader's decision, documents."""

from __future__ import annotations

import random

import pytest

from rmq.coordination.documents import (
    MAX_NODE_BYTES,
    Assignment,
    WorkerDocument,
    node_name,
    owner_path,
    slots_from_definition,
    topic_name,
)
from rmq.coordination.leading import decide
from rmq.coordination.machine import Plan, WorkerMachine
from rmq.coordination.requests import UNKNOWN, Children, Create, Get, Look, Put, Reply, Request, Sync
from rmq.coordination.rounds import Member
from rmq.coordination.values import SlotKey, Stat
from rmq.errors import CoordinationError

ONE, TWO = ("t", 1), ("t", 2)
SESSION, OTHER = 7, 8


def machine_with(*keys: SlotKey, now_s: float = 0.0, **options: int) -> WorkerMachine:
    """Return a machine that owns these slots with epochs from 100 on; sessions last 9 s, drains 5 s."""
    machine = WorkerMachine(9.0, 5.0, **options)
    machine.contacted(SESSION, now_s)
    machine.observed(SESSION, set(keys), (), {}, now_s)
    for epoch, key in enumerate(machine.plan(now_s).acquire, 100):
        machine.acquired(key, Stat(epoch, 0, SESSION))
    return machine


def test_nothing_is_planned_before_zookeeper_was_read() -> None:
    machine = WorkerMachine(9.0, 5.0)
    assert machine.plan(0.0) == Plan()
    machine.contacted(SESSION, 0.0)
    assert (machine.plan(0.0), machine.owned(0.0)) == (Plan(), {})


def test_what_is_assigned_and_free_is_acquired() -> None:
    machine = machine_with(ONE, TWO)
    assert machine.owned(1.0) == {ONE: 100, TWO: 101}
    assert machine.plan(1.0) == Plan()


def test_another_workers_node_is_waited_for() -> None:
    machine = WorkerMachine(9.0, 5.0)
    machine.contacted(SESSION, 0.0)
    assert machine.doubtful({ONE}, {ONE}) == {ONE}
    machine.observed(SESSION, {ONE}, {ONE}, {ONE: Stat(50, 0, OTHER)}, 0.0)
    assert (machine.plan(0.0), machine.owned(0.0)) == (Plan(), {})


def test_no_claims_after_a_break_until_zookeeper_was_read_again() -> None:
    machine = machine_with(ONE)
    machine.suspended()
    assert machine.owned(1.0) == {}
    assert machine.epochs() == {ONE: 100}
    machine.contacted(SESSION, 1.0)
    assert machine.owned(1.0) == {}
    machine.observed(SESSION, {ONE}, {ONE}, {}, 1.0)
    assert machine.owned(1.0) == {ONE: 100}


def test_the_watchdog_strikes_two_thirds_of_the_timeout_after_the_last_contact() -> None:
    # pitfall 37
    machine = machine_with(ONE, now_s=10.0)
    assert machine.owned(15.99) == {ONE: 100}
    assert machine.owned(16.0) == {}
    assert not machine.expire(15.99)
    assert machine.expire(16.0)
    assert not machine.expire(16.0)
    assert (machine.epochs(), machine.suspects) == ({}, {ONE})


def test_a_late_reply_counts_from_when_the_request_was_sent() -> None:
    machine = machine_with(ONE)
    machine.contacted(SESSION, 4.0)
    machine.contacted(SESSION, 3.0)
    assert machine.deadline_s == 10.0


def test_after_the_watchdog_a_living_session_gets_its_nodes_back() -> None:
    machine = machine_with(ONE, sample=0)
    machine.expire(6.0)
    machine.contacted(SESSION, 8.0)
    assert machine.doubtful({ONE}, {ONE}) == {ONE}
    machine.observed(SESSION, {ONE}, {ONE}, {ONE: Stat(100, 0, SESSION)}, 8.0)
    assert machine.owned(8.0) == {ONE: 100}


def test_a_new_session_owns_nothing_of_the_old_one() -> None:
    # pitfall 42
    machine = machine_with(ONE, sample=0)
    machine.contacted(OTHER, 1.0)
    assert (machine.epochs(), machine.suspects) == ({}, frozenset())
    machine.observed(OTHER, {ONE}, {ONE}, {ONE: Stat(100, 0, SESSION)}, 1.0)
    assert machine.owned(1.0) == {}


@pytest.mark.parametrize("stat", [None, Stat(150, 0, SESSION), Stat(100, 0, OTHER)])
def test_a_node_that_is_gone_or_another_is_no_longer_ours(stat: Stat | None) -> None:
    machine = machine_with(ONE)
    machine.observed(SESSION, {ONE}, {ONE}, {ONE: stat}, 1.0)
    assert machine.epochs().get(ONE) != 100


def test_a_node_missing_from_the_list_is_acquired_again() -> None:
    machine = machine_with(ONE)
    machine.observed(SESSION, {ONE}, (), {}, 1.0)
    assert machine.plan(1.0) == Plan(acquire=(ONE,))


def test_a_create_without_reply_is_looked_at_even_if_the_slot_went_elsewhere() -> None:
    machine = WorkerMachine(9.0, 5.0, sample=0)
    machine.contacted(SESSION, 0.0)
    machine.observed(SESSION, {ONE}, (), {}, 0.0)
    assert machine.plan(0.0) == Plan(acquire=(ONE,))
    assert machine.doubtful(set(), {ONE}) == {ONE}
    machine.observed(SESSION, set(), {ONE}, {ONE: Stat(100, 0, SESSION)}, 1.0)
    assert machine.revoking() == {ONE}


def test_a_revoked_slot_is_released_once_drained() -> None:
    machine = machine_with(ONE, TWO)
    machine.drained(TWO)  # not revoked: says nothing
    machine.observed(SESSION, {ONE}, {ONE, TWO}, {}, 1.0)
    assert machine.owned(1.0) == {ONE: 100}
    assert (machine.revoking(), machine.epochs()) == ({TWO}, {ONE: 100, TWO: 101})
    assert machine.plan(1.0) == Plan()
    machine.drained(TWO)
    assert machine.plan(1.0) == Plan(release=(TWO,))
    assert (machine.plan(1.0), machine.epochs(), machine.revoking()) == (Plan(), {ONE: 100}, frozenset())
    machine.released(TWO)
    assert machine.held == {ONE}


def test_a_revoked_slot_is_released_at_the_limit() -> None:
    machine = machine_with(ONE)
    machine.observed(SESSION, set(), {ONE}, {}, 0.5)
    assert machine.next_drain_limit_s() == 5.5
    assert machine.plan(5.49) == Plan()
    assert machine.plan(5.5) == Plan(release=(ONE,))


def test_a_slot_assigned_again_is_kept_with_its_epoch() -> None:
    machine = machine_with(ONE)
    machine.observed(SESSION, set(), {ONE}, {}, 1.0)
    machine.drained(ONE)
    machine.observed(SESSION, {ONE}, {ONE}, {}, 2.0)
    assert (machine.owned(2.0), machine.plan(2.0), machine.next_drain_limit_s()) == ({ONE: 100}, Plan(), None)


def test_every_node_is_looked_at_in_the_end() -> None:
    machine = machine_with(sample=3)
    present = {("t", slot) for slot in range(10)}
    looked = [machine.doubtful(set(), present) for _ in range(4)]
    assert all(len(keys) == 3 for keys in looked)
    assert set().union(*looked) == present


# --- the leader


def test_the_leader_writes_only_what_changes() -> None:
    workers = {"w0": WorkerDocument({"t": 4}), "w1": WorkerDocument({"t": 4})}
    first = decide(workers, {"t": 4}, None)
    assert first is not None
    assert decide(workers, {"t": 4}, first) is None
    third = decide({**workers, "w2": WorkerDocument({"t": 4})}, {"t": 4}, first)
    assert third is not None
    kept = sum(old == new for old, new in zip(first.topics["t"], third.topics["t"], strict=True))
    assert kept == 3


def test_unregistered_topics_and_other_slot_counts_get_nothing() -> None:
    workers = {"w0": WorkerDocument({"t": 8, "unknown": 2}), "w1": WorkerDocument({"t": 4})}
    assert decide(workers, {"t": 4}, None) == Assignment({"t": ("w1",) * 4})
    assert decide({}, {"t": 4}, None) == Assignment()


# --- rounds


def answer(requests: list[Request], nodes: dict[str, tuple[bytes, Stat]]) -> list[Reply]:
    replies: list[Reply] = []
    for request in requests:
        if isinstance(request, Sync | Put):
            replies.append(True)
        elif isinstance(request, Get):
            replies.append(nodes.get(request.path))
        elif isinstance(request, Children):
            replies.append([path.rpartition("/")[2] for path in nodes if path.rpartition("/")[0] == request.path])
        elif isinstance(request, Look):
            replies.append(nodes[request.path][1] if request.path in nodes else None)
        elif isinstance(request, Create) and request.path not in nodes:
            nodes[request.path] = (request.data, Stat(len(nodes), 0, SESSION if request.ephemeral else 0))
            replies.append(nodes[request.path][1])
        else:
            replies.append(None)
    return replies


def play(member: Member, nodes: dict[str, tuple[bytes, Stat]]) -> tuple[bool, list[Request]]:
    steps, seen = member.round(SESSION), list[Request]()
    try:
        requests = next(steps)
        while True:
            seen += requests
            requests = steps.send(answer(list(requests), nodes))
    except StopIteration as end:
        return end.value, seen


def member_of(**topics: int) -> Member:
    return Member("w", WorkerDocument(topics), WorkerMachine(9.0, 5.0), lambda: 0.0)


def fresh_nodes() -> dict[str, tuple[bytes, Stat]]:
    return {"/topics/t": (b'{"slots":2}', Stat(1, 0, 0)), "/topics/bad": (b"?", Stat(2, 0, 0))}


def test_two_rounds_make_a_single_worker_own_all() -> None:
    member, nodes = member_of(t=2), fresh_nodes()
    assert play(member, nodes)[0]
    assert member.leads
    assert play(member, nodes)[0]
    assert member.machine.owned(0.0).keys() == {("t", 0), ("t", 1)}
    assert nodes["/ensemble"][0].decode() == member.ensemble


def test_a_round_without_change_only_reads() -> None:
    member, nodes = member_of(t=2), fresh_nodes()
    for _ in range(2):
        play(member, nodes)
    assert not [request for request in play(member, nodes)[1] if isinstance(request, Create | Put)]


def test_an_unreadable_assignment_changes_nothing_and_is_written_anew() -> None:
    member, nodes = member_of(t=2), fresh_nodes()
    for _ in range(2):
        play(member, nodes)
    good = nodes["/assignment"]
    nodes["/assignment"] = (b"{", good[1])
    written = [request for request in play(member, nodes)[1] if isinstance(request, Put)]
    assert written == [Put("/assignment", good[0], 0)]
    assert len(member.machine.owned(0.0)) == 2


def test_a_foreign_worker_node_under_our_name_blocks() -> None:
    member, nodes = member_of(t=2), fresh_nodes()
    nodes["/workers/w"] = (b"{}", Stat(3, 0, OTHER))
    finished, seen = play(member, nodes)
    assert finished
    assert member.blocked_by == OTHER
    assert not [request for request in seen if isinstance(request, Create) and request.ephemeral]


def test_a_broken_connection_breaks_the_round_off() -> None:
    steps = member_of(t=2).round(SESSION)
    requests = next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send([UNKNOWN] * len(requests))
    assert end.value.value is False


# --- documents


def test_the_assignment_survives_its_node() -> None:
    assignment = Assignment({"a": ("w0", "w0", None, "w1"), "b": (None,), "c.d-e_f": ("w0",)})
    data = assignment.to_json()
    assert Assignment.from_json(data) == assignment
    assert b'"w0":"0-1"' in data
    assert assignment.of("w0", ["a", "b", "gone"]) == {("a", 0), ("a", 1)}


def test_16_384_scattered_slots_fit_into_a_node() -> None:
    rng = random.Random(1)
    workers = [f"worker-{number:03}" for number in range(200)]
    assignment = Assignment({f"t{i}": tuple(rng.choice(workers) for _ in range(16_384)) for i in range(8)})
    data = assignment.to_json()
    assert len(data) < MAX_NODE_BYTES
    assert Assignment.from_json(data) == assignment


def test_an_assignment_too_large_for_a_node_is_refused() -> None:
    owners = tuple(f"w{slot % 2}" for slot in range(16_384))
    with pytest.raises(CoordinationError, match="fewer slots"):
        Assignment({f"t{i}": owners for i in range(12)}).to_json()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"topics":1}', b'{"topics":{"a":{"slots":"x"}}}', b"\xff"])
def test_foreign_contents_are_no_documents(data: bytes) -> None:
    assert Assignment.from_json(data) is None
    assert WorkerDocument.from_json(data) is None
    assert slots_from_definition(data) is None


def test_a_worker_document_survives_its_node() -> None:
    document = WorkerDocument({"a": 4}, 3, "host", 42)
    assert WorkerDocument.from_json(document.to_json()) == document


@pytest.mark.parametrize("topic", ["a", "a.b", ".", "..", "...", ".a", "A-_9"])
def test_topics_become_node_names_and_back(topic: str) -> None:
    assert node_name(topic) not in (".", "..")
    assert topic_name(node_name(topic)) == topic
    assert owner_path((topic, 3)).endswith("/3")
