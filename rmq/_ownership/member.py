"""What a worker does in ZooKeeper, round by round, without doing any of it: requests out, replies in.

A round goes through ZooKeeper's leader first (which proves contact and makes the reads fresh), reads all state, mends
what is missing, tells the machine, carries out its plan, and leads if this worker leads. Rounds run every few seconds
and whenever a watch fires; each starts from what it reads, so that no lost watch, no lost reply and no lost node can
stick (pitfall 40).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast
from uuid import uuid4

from rmq._ownership.assignments import Assignment
from rmq._ownership.counting import Counting
from rmq._ownership.documents import (
    ASSIGNMENT,
    ENSEMBLE,
    LEADER,
    OWNERS,
    TOPICS,
    WORKERS,
    WorkerDocument,
    owner_path,
    owners_path,
    slots_from_definition,
    topic_path,
    worker_path,
)
from rmq._ownership.leading import Leader
from rmq._ownership.machine import WorkerMachine
from rmq._ownership.requests import (
    UNKNOWN,
    BrokenOffError,
    Children,
    Create,
    Get,
    Look,
    Node,
    Put,
    Release,
    Steps,
    Sync,
    read,
)
from rmq._ownership.troubles import Troubles
from rmq._ownership.values import SlotKey, Stat
from rmq.errors import UnreadableDocumentError

FULL_S = 10.0
"""How long a session may lack room before that is told: slots that it hands over still count."""

OWNERLESS_S = 60.0
"""How long slots of ours may have no owner before that is told: hand-overs and the end of a session take time."""

CHUNK = 1_024
"""The most nodes that are looked at, or made, between two proofs that the session lives."""


class Member:
    """One worker as a member of the cluster."""

    def __init__(
        self, worker: str, document: WorkerDocument, machine: WorkerMachine, clock: Callable[[], float]
    ) -> None:
        self.worker = worker
        self.document = document
        self.machine = machine
        self.definitions: dict[str, bytes] = {}  # of consumed topics, as registered: made again where they are gone
        self.ensemble: str | None = None
        self.leads = False
        self.troubles = Troubles(clock)
        self.counting = Counting(self.troubles)
        self.leader = Leader(self.troubles, machine.budget)
        self._clock = clock
        self._prepared: int | None = None  # the session in which the fixed nodes were seen
        self._assignment: Assignment | None = None  # the last one that could be read
        self._readable = False
        self._assigned: tuple[Assignment, WorkerDocument, frozenset[SlotKey]] | None = None

    def round(self, session: int, breaks: int = 0) -> Steps[bool]:
        """Work one round within `session`, whose connection broke `breaks` times; tell whether it came to its end."""
        self.troubles.begin()
        try:
            yield from self._work(session, breaks)
        except BrokenOffError:
            return False
        self.troubles.end()
        return True

    def _prepare(self, session: int) -> Steps[None]:
        """Create the fixed nodes where they are missing, and learn the ensemble's identity."""
        consumed = sorted(self.document.topics)
        fixed = dict.fromkeys((WORKERS, TOPICS, OWNERS, *map(owners_path, consumed)), b"")
        fixed |= {topic_path(topic): self.definitions[topic] for topic in consumed if topic in self.definitions}
        # within a session nobody has set ZooKeeper up anew: only the node was deleted
        known = self.ensemble if self._prepared == session else None
        fixed[ENSEMBLE] = (known or str(uuid4())).encode()
        yield from read(*(Create(path, data, ephemeral=False) for path, data in fixed.items()))
        (node,) = yield from read(Get(ENSEMBLE))
        if node is None:  # deleted meanwhile
            raise BrokenOffError
        self._meet(cast("tuple[bytes, Stat]", node)[0])
        self._prepared = session

    def _meet(self, identity: bytes) -> None:
        """Note the ensemble's identity."""
        before, self.ensemble = self.ensemble, identity.decode(errors="replace")
        if before not in (None, self.ensemble):
            self.troubles.tell(
                f"ZooKeeper is ensemble {self.ensemble} now, it was {before}: Redis refuses it slot by slot until"
                f" RmqClient.adopt(topic, {before!r}) moves each topic over on purpose"
            )

    def _work(self, session: int, breaks: int) -> Steps[None]:
        consumed = self.document.topics  # another thread may take in a new document meanwhile
        topics = sorted({*consumed, *(topic for topic, _ in self.machine.held | self.machine.suspects)})
        sent_s = self._clock()
        _, me, leader, assignment, ensemble, *rest = yield from read(
            Sync(),
            Get(worker_path(self.worker)),
            Look(LEADER, watch=True),
            Get(ASSIGNMENT, watch=True),
            Get(ENSEMBLE),
            *(Children(owners_path(topic), watch=True) for topic in topics),
            *(Get(topic_path(topic)) for topic in consumed),
        )
        self.machine.contacted(session, sent_s)
        listed = dict(zip(topics, cast("list[list[str] | None]", rest), strict=False))
        registered = dict(zip(consumed, cast("list[Node]", rest[len(topics) :]), strict=True))
        gone = ensemble is None or any(
            listed[topic] is None or (node is None and topic in self.definitions) for topic, node in registered.items()
        )
        if gone or self._prepared != session:
            yield from self._prepare(session)
        else:
            self._meet(cast("tuple[bytes, Stat]", ensemble)[0])
        present = {(topic, int(name)) for topic, names in listed.items() for name in names or () if _is_slot(name)}
        announced = yield from self._announce(session, cast("Node", me))
        version = self._take(cast("Node", assignment))
        yield from self._observe(session, present)
        if announced:
            self._look_for_owners(consumed, registered, present)
            may_acquire = yield from self.counting.check(
                (session, breaks), self.ensemble or "", worker_path(self.worker)
            )
            yield from self._carry_out(may_acquire=may_acquire)
            yield from self._lead(session, cast("Stat | None", leader), version)

    def _announce(self, session: int, me: Node) -> Steps[bool]:
        """Bring our own node up to date; tell whether it is there and ours."""
        data = self.document.to_json()
        path = worker_path(self.worker)
        if me is None:
            (created,) = yield from read(Create(path, data, ephemeral=True))
            if created is None:  # taken meanwhile, or the fixed nodes were deleted
                self._prepared = None
            return created is not None
        if me[1].session != session:
            text = f"the worker node of {self.worker} belongs to session {me[1].session:#x}; waiting until it ends."
            self.troubles.note("blocked", f"{text} If it never does, two live workers have this id")
            return False
        if me[0] != data:
            yield from read(Put(path, data, me[1].version))
        return True

    def _take(self, node: Node) -> int | None:
        """Take over the assignment and return its version, None if there is none. An unreadable one changes nothing."""
        self._readable = False
        if node is None:
            return None
        try:
            self._assignment = Assignment.from_json(node[0])
            self._readable = True
        except UnreadableDocumentError as error:
            self.troubles.note(
                "assignment", f"{error}. Slots stay with their owners until the leader writes one that all can read"
            )
        return node[1].version

    def _observe(self, session: int, present: set[SlotKey]) -> Steps[None]:
        assigned = self._my_slots()
        doubtful = sorted(self.machine.doubtful(assigned, present))
        nodes: dict[SlotKey, Stat | None] = {}
        for start in range(0, len(doubtful), CHUNK):
            part = doubtful[start : start + CHUNK]
            sent_s = self._clock()
            _, *stats = yield from read(Sync(), *(Look(owner_path(key)) for key in part))
            self.machine.contacted(session, sent_s)  # thousands of reads may take longer than the watchdog waits
            nodes.update(zip(part, cast("list[Stat | None]", stats), strict=True))
        self.machine.observed(session, assigned, present, nodes, self._clock())

    def _my_slots(self) -> frozenset[SlotKey]:
        assignment, document = self._assignment, self.document
        if assignment is None:
            return frozenset()
        if self._assigned is None or self._assigned[0] is not assignment or self._assigned[1] is not document:
            self._assigned = assignment, document, assignment.of(self.worker, document.topics)
        mine = self._assigned[2]
        if not assignment.partial:
            return mine
        left_out = document.topics.keys() - assignment.topics.keys()
        return mine | {key for key in self.machine.held if key[0] in left_out}

    def _look_for_owners(
        self, consumed: Mapping[str, int], registered: Mapping[str, Node], present: set[SlotKey]
    ) -> None:
        """Say which of our topics can't be served, and why."""
        for topic, mine in consumed.items():
            node = registered[topic]
            if node is None and topic not in self.definitions:
                self.troubles.note(f"topic {topic}", f"topic {topic} is not registered in ZooKeeper", OWNERLESS_S)
                continue
            try:
                slots = mine if node is None else slots_from_definition(node[0])
            except UnreadableDocumentError as error:
                self.troubles.note(f"topic {topic}", f"topic {topic} gets no new owners: {error}")
                continue
            if slots != mine:
                text = f"topic {topic} is registered in ZooKeeper with {slots} slots, here it has {mine}"
                self.troubles.note(f"topic {topic}", f"{text}: this worker gets none of them")
                continue
            free = slots - len({slot for place, slot in present if place == topic and slot < slots})
            if free > 0:
                text = f"{free} of {slots} slots of topic {topic} have no owner: {self._why_ownerless(topic)}"
                self.troubles.note(f"topic {topic}", text, OWNERLESS_S)

    def _why_ownerless(self, topic: str) -> str:
        assignment = self._assignment
        if not self._readable or assignment is None:
            return "there is no assignment that this worker can read"
        owners = assignment.topics.get(topic)
        if owners is None:
            leaves_out = "leaves the topic out" if assignment.partial else "has none of them in it"
            return f"the assignment {leaves_out}, see the log of the worker that leads"
        unassigned = owners.count(None)
        if unassigned:
            return f"the sessions of the live workers have no room for {unassigned} of them; start more workers"
        return "the workers that they are assigned to have not taken them"

    def _carry_out(self, *, may_acquire: bool) -> Steps[None]:
        plan = self.machine.plan(self._clock(), may_acquire=may_acquire)
        if self.machine.left_out:
            text = f"{self.machine.left_out} slots assigned to worker {self.worker} stay without an owner"
            self.troubles.note("full", f"{text}: {self.machine.budget.advice()}", FULL_S)
        name, guard = self.worker.encode(), worker_path(self.worker)
        yield from self._change([(key, Release(owner_path(key), guard)) for key in plan.release])
        yield from self._change([(key, Create(owner_path(key), name, ephemeral=True)) for key in plan.acquire])

    def _change(self, requests: Sequence[tuple[SlotKey, Release | Create]]) -> Steps[None]:
        """Tell the machine what came of releasing (True, False) and acquiring (its node, None)."""
        for start in range(0, len(requests), CHUNK):
            part = requests[start : start + CHUNK]
            replies = yield [request for _, request in part]
            for (key, _), reply in zip(part, replies, strict=True):
                if reply is True:
                    self.machine.released(key)
                elif reply is not UNKNOWN and not isinstance(reply, bool):
                    self.machine.acquired(key, cast("Stat | None", reply))
            if UNKNOWN in replies:
                raise BrokenOffError

    def _lead(self, session: int, leader: Stat | None, version: int | None) -> Steps[None]:
        """Stand for leader if there is none; as leader write the assignment if another one is due."""
        if leader is None:
            (created,) = yield from read(Create(LEADER, self.worker.encode(), ephemeral=True))
            leader = cast("Stat | None", created)
        self.leads = leader is not None and leader.session == session
        if self.leads:
            yield from self.leader.lead(self._assignment, version, readable=self._readable)


def _is_slot(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10
