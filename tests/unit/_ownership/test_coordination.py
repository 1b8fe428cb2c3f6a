"""The pure parts of the coordination: machine, rounds, leader's decision, documents."""

from __future__ import annotations

import random
import zlib
from base64 import b64encode
from dataclasses import replace
from math import inf

import pytest

from rmq._ownership.assignment import MAX_NODE_BYTES, Assignment
from rmq._ownership.leading import decide, other_redis_workers
from rmq._ownership.machine import Plan, WorkerMachine
from rmq._ownership.member import Member
from rmq._ownership.requests import (
    UNKNOWN,
    Children,
    Create,
    Get,
    Look,
    Put,
    Refused,
    Release,
    Reply,
    Request,
    Sync,
)
from rmq._ownership.values import (
    SlotKey,
    Stat,
    WorkerDocument,
    node_name,
    owner_path,
    slots_from_definition,
    topic_name,
)
from rmq.errors import UnreadableDocumentError

ONE, TWO = ("t", 1), ("t", 2)
SESSION, OTHER = 7, 8


def machine_with(*keys: SlotKey, now_s: float = 0.0, sample: int = 16) -> WorkerMachine:
    """Return a machine that owns these slots with epochs from 100 on; sessions last 9 s, drains 5 s."""
    machine = WorkerMachine(9.0, 5.0, sample)
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


def test_who_leaves_gives_every_handler_the_time_of_the_stop() -> None:
    machine = machine_with(ONE, TWO)
    machine.observed(SESSION, {TWO}, {ONE, TWO}, {}, 0.5)  # asked back before
    machine.leave(4.0, 20.0)
    machine.observed(SESSION, set(), {ONE, TWO}, {}, 4.0)
    machine.contacted(SESSION, 23.0)
    assert machine.plan(23.99) == Plan()
    assert machine.plan(24.0) == Plan(release=(ONE, TWO))


def test_a_slot_assigned_again_is_kept_with_its_epoch() -> None:
    machine = machine_with(ONE)
    machine.observed(SESSION, set(), {ONE}, {}, 1.0)
    machine.drained(ONE)
    machine.observed(SESSION, {ONE}, {ONE}, {}, 2.0)
    assert (machine.owned(2.0), machine.plan(2.0), machine.next_drain_limit_s()) == ({ONE: 100}, Plan(), inf)


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
    assert decide(workers, {"t": 4}, first) == first
    third = decide({**workers, "w2": WorkerDocument({"t": 4})}, {"t": 4}, first)
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
        if isinstance(request, Sync):
            replies.append(True)
        elif isinstance(request, Put):
            nodes[request.path] = (request.data, nodes[request.path][1])
            replies.append(True)
        elif isinstance(request, Get):
            replies.append(nodes.get(request.path))
        elif isinstance(request, Children):
            below = [path.rpartition("/")[2] for path in nodes if path.rpartition("/")[0] == request.path]
            replies.append(below if below or request.path in nodes else None)
        elif isinstance(request, Look):
            replies.append(nodes[request.path][1] if request.path in nodes else None)
        elif isinstance(request, Create) and request.path not in nodes:
            nodes[request.path] = (request.data, Stat(len(nodes), 0, SESSION if request.ephemeral else 0))
            replies.append(nodes[request.path][1])
        elif isinstance(request, Release):
            replies.append(nodes.pop(request.path, None) is not None or request.guard in nodes)
        else:
            replies.append(None)
    return replies


def play(
    member: Member, nodes: dict[str, tuple[bytes, Stat]], breaks: int = 0, denied: tuple[type, str] | None = None
) -> tuple[bool, list[Request]]:
    steps, seen = member.round(SESSION, breaks), list[Request]()
    try:
        requests = next(steps)
        while True:
            seen += requests
            replies = answer(list(requests), nodes)
            for at, request in enumerate(requests):
                if denied and isinstance(request, denied[0]) and getattr(request, "path", "").startswith(denied[1]):
                    replies[at] = Refused(request, "NoAuth")
            requests = steps.send(replies)
    except StopIteration as end:
        return end.value, seen


def member_of(**topics: int) -> Member:
    return Member("w", WorkerDocument(topics), WorkerMachine(9.0, 5.0), lambda: 0.0)


def fresh_nodes() -> dict[str, tuple[bytes, Stat]]:
    return {
        "/topics/t": (b'{"slots":2,"version":4,"min_reader":4}', Stat(1, 0, 0)),
        "/topics/bad": (b"?", Stat(2, 0, 0)),
    }


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


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def settled_member(**topics: int) -> tuple[Member, dict[str, tuple[bytes, Stat]], Clock]:
    """Return a member that leads and owns all slots of its topics, its nodes, and its clock."""
    clock, nodes = Clock(), dict[str, tuple[bytes, Stat]]()
    member = Member("w", WorkerDocument(topics), WorkerMachine(9.0, 5.0), clock)
    member.definitions = {topic: b'{"slots":%d,"version":4,"min_reader":4}' % slots for topic, slots in topics.items()}
    for _ in range(3):
        assert play(member, nodes)[0]
    assert len(member.machine.owned(clock())) == sum(topics.values())
    assert member.problems.news() == []
    return member, nodes, clock


REFUSALS = [
    *((kind, path) for path in ("/leader", "/owners/u/1") for kind in (Look, Create)),
    *((Get, path) for path in ("/ensemble", "/workers/", "/topics/u", "/assignment")),
    *((Children, path) for path in ("/workers", "/topics", "/owners/u")),
    *((Put, path) for path in ("/workers/", "/assignment", "/ensemble")),
    *((Create, path) for path in ("/workers/w", "/topics/u", "/owners/u", "/ensemble")),
]


@pytest.mark.parametrize(("kind", "path"), REFUSALS)
@pytest.mark.parametrize("gone_back", [False, True])
def test_a_refused_request_ends_no_round_and_is_told(kind: type[Request], path: str, gone_back: bool) -> None:
    member, nodes, clock = settled_member(t=2, u=2)
    if kind is Create:
        for node in [node for node in nodes if node.startswith(path)]:
            del nodes[node]
    if gone_back:
        member.transaction_ids.note(member.ensemble or "", 10**9)
    member.document = replace(member.document, weight=2)
    for _ in range(3):
        finished, seen = play(member, nodes, denied=(kind, path))
        assert finished or gone_back
        assert {("t", 0), ("t", 1)} <= member.machine.owned(clock()).keys(), "what it has it keeps"
        refused = any(isinstance(each, kind) and getattr(each, "path", "").startswith(path) for each in seen)
        assert any("denies access" in text for text in member.problems.current()) or not refused


@pytest.mark.parametrize(("kind", "path"), [(Get, "/assignment"), (Put, "/assignment"), (Children, "/workers")])
def test_who_may_not_do_a_leaders_part_gives_way_for_a_minute(kind: type[Request], path: str) -> None:
    member, nodes, clock = settled_member(t=2)
    nodes["/assignment"] = (Assignment().to_json(), nodes["/assignment"][1])  # so that another one is due
    epoch = nodes["/leader"][1].czxid
    seen = play(member, nodes, denied=(kind, path))[1]
    assert Release("/leader", "/workers/w", epoch=epoch) in seen
    assert not member.leads
    for now_s, leads in ((59.0, False), (60.0, True)):
        clock.now_s = now_s
        member.machine.contacted(SESSION, now_s)
        play(member, nodes)
        assert member.leads is leads


def test_a_release_names_the_epoch_of_its_node() -> None:
    member, nodes, clock = settled_member(t=2)
    epochs = {slot: nodes[f"/owners/t/{slot}"][1].czxid for slot in range(2)}
    member.machine.leave(clock(), 0.0)
    nodes["/assignment"] = (Assignment({"t": (None, None)}).to_json(), nodes["/assignment"][1])
    nodes["/leader"] = (b"a", Stat(90, 0, OTHER))
    seen = play(member, nodes)[1]
    released = [each for each in seen if isinstance(each, Release)]
    assert released == [Release(f"/owners/t/{slot}", "/workers/w", epoch=epochs[slot]) for slot in range(2)]


def test_who_gets_nothing_though_it_is_owed_a_share_says_so() -> None:
    member, nodes, clock = settled_member(t=4)
    nodes["/leader"] = (b"a", Stat(90, 0, OTHER))
    nodes["/workers/a"] = (
        WorkerDocument({"t": 4}, 1).to_json(),
        Stat(91, 0, OTHER),
    )
    nodes["/assignment"] = (Assignment({"t": ("a",) * 4}).to_json(), nodes["/assignment"][1])
    for now_s in (0.0, 10.0):
        clock.now_s = now_s
        play(member, nodes)
    assert "none of the 4 slots of topic t" in " ".join(member.problems.current())
    for document in (
        NEWER,
        WorkerDocument({"t": 4}, 4).to_json(),
    ):
        nodes["/workers/a"] = (document, nodes["/workers/a"][1])
        play(member, nodes)
        assert ("none of the 4" in " ".join(member.problems.current())) is (document == NEWER)


@pytest.mark.parametrize("lost", ["/topics/t", "/topics", "/owners/t", "/owners", "/ensemble", "/assignment", ""])
def test_a_live_worker_makes_lost_nodes_anew(lost: str) -> None:
    member, nodes, clock = settled_member(t=2)
    identity = member.ensemble
    for path in [path for path in nodes if path == lost or path.startswith(f"{lost}/")]:
        del nodes[path]
    for _ in range(3):
        play(member, nodes)
    assert member.machine.owned(clock()).keys() == {("t", 0), ("t", 1)}
    assert nodes.keys() >= {"/topics/t", "/owners/t/0", "/owners/t/1", "/ensemble", "/assignment", "/workers/w"}
    assert nodes["/topics/t"][0] == b'{"slots":2,"version":4,"min_reader":4}'
    assert (member.ensemble, nodes["/ensemble"][0].decode()) == (identity, identity)


def test_another_ensemble_than_before_is_told() -> None:
    member, nodes, _ = settled_member(t=2)
    before = member.ensemble
    nodes["/ensemble"] = (b"new", Stat(99, 0, 0))
    play(member, nodes)
    (told,) = member.problems.news()
    assert "to new: Redis refuses" in told
    assert f"RmqClient.adopt(topic, {before!r})" in told


def test_a_topic_without_registration_or_owner_for_a_minute_is_told_once() -> None:
    clock = Clock()
    member = Member("w", WorkerDocument({"t": 4}), WorkerMachine(9.0, 5.0), clock)
    nodes = fresh_nodes()
    del nodes["/topics/t"]
    for now_s, news in ((0.0, 0), (59.0, 0), (60.0, 1), (61.0, 0), (700.0, 1)):
        clock.now_s = now_s
        play(member, nodes)
        told = member.problems.news()
        assert len(told) == news, told
        assert all("topic t is not registered" in text for text in told)
    member.definitions["t"] = b'{"slots":4,"version":4,"min_reader":4}'
    nodes["/leader"] = (b"other", Stat(5, 0, OTHER))
    nodes["/owners/t/9"] = (b"other", Stat(6, 0, OTHER))  # of more slots that the topic once had
    for now_s in (800.0, 860.0):
        clock.now_s = now_s
        play(member, nodes)
    (told,) = member.problems.news()
    assert "4 of 4 slots of topic t have no owner" in told
    assert member.problems.current() == (told,)


def test_another_number_of_slots_is_told_at_once_and_read_in_each_round() -> None:
    member, nodes, clock = settled_member(t=2)
    nodes["/topics/t"] = (
        b'{"slots":4,"version":4,"min_reader":4}',
        Stat(50, 0, 0),
    )  # deleted, and made anew by another release
    for _ in range(2):
        play(member, nodes)
    (told,) = member.problems.news()
    assert "has 4 slots in ZooKeeper, but this worker expects 2" in told
    assert member.machine.owned(clock()) == {}
    nodes["/topics/t"] = (b'{"slots":2,"version":4,"min_reader":4}', Stat(60, 0, 0))
    for _ in range(3):
        play(member, nodes)
    assert len(member.machine.owned(clock())) == 2


NEWER = b'{"version":99,"min_reader":99}'


def test_an_assignment_for_newer_readers_is_told_and_written_anew_by_who_leads() -> None:
    member, nodes, clock = settled_member(t=2)
    good = nodes["/assignment"]
    nodes["/leader"] = (b"other", Stat(5, 0, OTHER))
    nodes["/assignment"] = (NEWER, good[1])
    written = [request for request in play(member, nodes)[1] if isinstance(request, Put)]
    (told,) = member.problems.news()
    assert "schema version 99" in told
    assert "Slots stay with their owners" in told
    assert (written, len(member.machine.owned(clock()))) == ([], 2)
    nodes["/leader"] = (b"w", Stat(6, 0, SESSION))
    written = [request for request in play(member, nodes)[1] if isinstance(request, Put)]
    assert written == [Put("/assignment", good[0], 0)]
    assert len(member.machine.owned(clock())) == 2


@pytest.mark.parametrize("data", [NEWER, b"garbage", b'{"topics":3}'])
def test_an_unreadable_worker_or_definition_hides_only_itself(data: bytes) -> None:
    member, nodes, clock = settled_member(t=2, u=2)
    nodes["/workers/strange"] = (data, Stat(70, 0, OTHER))
    nodes["/topics/u"] = (data, Stat(71, 0, 0))
    del nodes["/owners/t/1"]
    for _ in range(3):
        play(member, nodes)
    told = " ".join(member.problems.news())
    assert "worker strange gets no slots" in told
    assert "topic u get" in told
    assert len(member.machine.owned(clock())) == 4  # those of u are kept, without new ones


@pytest.mark.parametrize("most_slots", [None, 67])
def test_a_topic_that_does_not_fit_keeps_its_owners_and_stops_no_other(most_slots: int | None) -> None:
    member, nodes, clock = settled_member(t=2, u=2)
    long = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=128))
    if most_slots is None:
        member.leader.limit = len(nodes["/assignment"][0]) + 40
    else:
        member.leader.most_slots = most_slots
    member.document = replace(member.document, topics={"t": 2, "u": 2, long: 64})
    member.definitions[long] = b'{"slots":64,"version":4,"min_reader":4}'
    for _ in range(3):
        play(member, nodes)
    assert Assignment.from_json(nodes["/assignment"][0]).partial
    assert len(member.machine.owned(clock())) == 4
    told = " ".join(member.problems.news())
    assert "topics are omitted" in told
    assert long in told
    clock.now_s = 61.0
    for _ in range(2):
        play(member, nodes)
    told = " ".join(member.problems.news())
    assert f"64 of 64 slots of topic {long} have no owner: the assignment omits the topic" in told


class Numbered(dict[str, tuple[bytes, Stat]]):
    """Nodes of a ZooKeeper that counts: each change gets a number."""

    zxid = 30

    def __setitem__(self, path: str, node: tuple[bytes, Stat]) -> None:
        self.zxid += 1
        before = self.get(path)
        stat = Stat(self.zxid if before is None else before[1].czxid, 0, node[1].session, self.zxid)
        super().__setitem__(path, (node[0], stat))


@pytest.mark.parametrize("mark", [10, 31, 40])
def test_a_zookeeper_that_counts_on_is_what_it_was(mark: int) -> None:
    member, nodes = member_of(t=2), Numbered()
    member.definitions["t"] = b'{"slots":2,"version":4,"min_reader":4}'
    member.transaction_ids.gated = True
    play(member, nodes)
    identity = member.ensemble
    assert identity is not None
    play(member, nodes)
    assert member.machine.held == set()  # nothing is taken before it is known how far the ensemble has counted
    nodes.zxid = max(nodes.zxid, 40)
    assert member.transaction_ids.awaits == (SESSION, 0)
    member.transaction_ids.give((SESSION, 0), {identity: mark, "another": 10**9})
    for _ in range(2):
        play(member, nodes)
    assert (member.ensemble, len(member.machine.held)) == (identity, 2)
    assert member.transaction_ids.reached(identity)


def test_a_zookeeper_that_went_back_gets_a_new_identity_before_anything_is_taken() -> None:
    member, nodes = member_of(t=2), Numbered()
    member.definitions["t"] = b'{"slots":2,"version":4,"min_reader":4}'
    member.transaction_ids.gated = True
    play(member, nodes)
    old = member.ensemble
    assert old is not None
    member.transaction_ids.give((SESSION, 0), {old: 1_000})
    finished, seen = play(member, nodes)
    assert not finished
    assert not [request for request in seen if isinstance(request, Create) and request.path.startswith("/owners/t/")]
    for _ in range(3):
        play(member, nodes)
    assert member.ensemble not in (None, old)
    assert nodes["/ensemble"][0].decode() == member.ensemble
    assert len(member.machine.held) == 2
    told = " ".join(member.problems.news())
    assert f"Redis has seen epoch 1000 of ensemble {old}" in told
    assert f"RmqClient.adopt(topic, {old!r})" in told


def test_a_new_connection_waits_for_marks_of_its_own() -> None:
    member, nodes = member_of(t=2), Numbered()
    member.transaction_ids.gated = True
    play(member, nodes)
    member.transaction_ids.give((SESSION, 0), {})
    assert member.transaction_ids.awaits is None
    play(member, nodes, breaks=1)
    assert member.transaction_ids.awaits == (SESSION, 1)
    member.transaction_ids.give((SESSION, 0), {})  # read before the connection broke
    assert member.transaction_ids.awaits == (SESSION, 1)


def test_a_topic_goes_to_workers_of_one_redis_only() -> None:
    def on(redis: str, *topics: str) -> WorkerDocument:
        return WorkerDocument(dict.fromkeys(topics, 4), redis=redis)

    slots = {"t": 4, "u": 4}
    prod = {"p1": on("prod", "t"), "p2": on("prod", "t"), "old": on("", "t"), "s1": on("staging", "t", "u")}
    current = decide({"s1": prod["s1"]}, slots, None)
    assert set(current.topics["t"]) == {"s1"}
    assert other_redis_workers(prod, current) == {"t": {"p1", "p2"}}
    assert set(decide(prod, slots, current).topics["t"]) == {"s1", "old"}  # who had it keeps it
    fresh = decide(prod, slots, None)
    assert set(fresh.topics["t"]) == {"old", "p1", "p2"}
    assert set(fresh.topics["u"]) == {"s1"}
    assert other_redis_workers({"a": on("", "t"), "b": on("prod", "t")}, None) == {}


def test_a_foreign_worker_node_under_our_name_blocks() -> None:
    member, nodes = member_of(t=2), fresh_nodes()
    nodes["/workers/w"] = (b"{}", Stat(3, 0, OTHER))
    finished, seen = play(member, nodes)
    assert finished
    assert "belongs to session 0x8" in member.problems.current()[0]
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
    assert Assignment.from_json(assignment.to_json()) == assignment
    assert assignment.of("w0", ["a", "b", "gone"]) == {("a", 0), ("a", 1)}


def test_16_384_scattered_slots_fit_into_a_node() -> None:
    rng = random.Random(1)
    workers = [f"worker-{number:03}" for number in range(200)]
    assignment = Assignment({f"t{i}": tuple(rng.choice(workers) for _ in range(16_384)) for i in range(8)})
    data = assignment.to_json()
    assert len(data) < MAX_NODE_BYTES
    assert Assignment.from_json(data) == assignment


@pytest.mark.parametrize(
    ("topics", "slots", "workers"), [(300, 64, 100), (200, 64, 100), (150, 1_024, 100), (20, 16_384, 10)]
)
def test_assignments_that_outgrew_their_node_fit(topics: int, slots: int, workers: int) -> None:
    rng = random.Random(2)
    names = [f"{'host-in-a-cluster-with-a-long-name'}-{rng.randrange(10**5)}-{i:012}" for i in range(workers)]
    owners = {f"shop.topic-{i}": tuple(rng.choice(names) for _ in range(slots)) for i in range(topics)}
    assert len(names[0]) == 52
    part, data = Assignment(owners).fitting(())
    assert (part.topics, part.partial) == (owners, False)
    assert len(data) < MAX_NODE_BYTES / 2
    assert Assignment.from_json(data) == part


@pytest.mark.parametrize("limit", [600, 2_000, 10_000])
def test_what_does_not_fit_is_left_out_topic_by_topic_new_ones_first(limit: int) -> None:
    rng = random.Random(3)
    topics = {f"topic-{i}": tuple(f"w{rng.randrange(9)}" for _ in range(64)) for i in range(200)}
    keep = [f"topic-{i}" for i in range(190, 200)]
    part, data = Assignment(topics).fitting(keep, limit)
    assert len(data) <= limit
    assert Assignment.from_json(data) == part
    assert 0 < len(part.topics) < 200
    assert part.topics.items() <= topics.items()
    assert part.partial
    if len(part.topics) >= len(keep):
        assert part.topics.keys() >= set(keep)
    else:
        assert part.topics.keys() <= set(keep)
    assert Assignment(topics).fitting(part.topics, limit) == (part, data)


def test_an_assignment_of_too_many_slots_leaves_out_new_topics_first() -> None:
    topics = {name: ("w",) * slots for name, slots in {"a": 8, "b": 4, "c": 16, "d": 2}.items()}
    part, data = Assignment(topics).fitting(["a", "c"], most_slots=26)
    assert (sorted(part.topics), part.partial) == (["a", "c", "d"], True)
    assert Assignment(topics).fitting(part.topics, most_slots=26) == (part, data)
    assert Assignment(topics).fitting([], most_slots=30)[0] == Assignment(topics)


FIRST = b'"version":4,"min_reader":4'
BOMB = b'"%s"' % b64encode(zlib.compress(b'{"workers":[],"topics":{"a":"%s"}}' % (b" " * (80 << 20))))
HUGE = b'"%s"' % b64encode(zlib.compress(b'{"workers":["w"],"topics":{"a":"0x99999999999"}}'))


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b"{}", b'{"topics":1}', b'{"topics":{"a":{"slots":"x"}}}', b"\xff", b"[" * 100_000),
        *(b'{%s,"partial":false,"zlib":%s}' % (FIRST, zlib) for zlib in (b"1", b'"AAAA"', b'"?"', BOMB, HUGE)),
        *(b'{"version":9,"min_reader":9,"topics":{}}', b'{"version":1,"min_reader":1,"topics":{}}'),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_foreign_contents_are_no_documents(data: bytes) -> None:
    for parse in (Assignment.from_json, WorkerDocument.from_json, slots_from_definition):
        with pytest.raises(UnreadableDocumentError):
            parse(data)


def test_a_worker_document_survives_its_node() -> None:
    document = WorkerDocument({"a": 4}, 3, "host", 42)
    assert WorkerDocument.from_json(document.to_json()) == document


@pytest.mark.parametrize("topic", ["a", "a.b", ".", "..", "...", ".a", "A-_9"])
def test_topics_become_node_names_and_back(topic: str) -> None:
    assert node_name(topic) not in (".", "..")
    assert topic_name(node_name(topic)) == topic
    assert owner_path((topic, 3)).endswith("/3")
