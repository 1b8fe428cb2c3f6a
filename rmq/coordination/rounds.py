"""What a worker does in ZooKeeper, round by round, without doing any of it: requests out, replies in.

A round goes through ZooKeeper's leader first (which proves contact and makes the reads fresh), reads all state, tells
the machine, carries out its plan, and leads if this worker leads. Rounds run every few seconds and whenever a watch
fires; each starts from what it reads, so that no lost watch and no lost reply can stick (pitfall 40).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from uuid import uuid4

from rmq.coordination.documents import (
    ASSIGNMENT,
    ENSEMBLE,
    LEADER,
    OWNERS,
    TOPICS,
    WORKERS,
    Assignment,
    WorkerDocument,
    owner_path,
    owners_path,
    slots_from_definition,
    topic_name,
    topic_path,
    worker_path,
)
from rmq.coordination.leading import decide
from rmq.coordination.requests import (
    UNKNOWN,
    Children,
    Create,
    Get,
    Look,
    Put,
    Release,
    Reply,
    Request,
    Sync,
)
from rmq.coordination.values import Stat

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from rmq.coordination.machine import WorkerMachine
    from rmq.coordination.values import SlotKey

    Round = Generator[Sequence[Request], Sequence[Reply], bool]
    """Yields batches of requests, is sent their replies, returns whether it came to its end."""

_Node = tuple[bytes, Stat] | None


class BrokenOffError(Exception):
    """A read of this round got no reply: the rest of the round makes no sense."""


class Member:
    """One worker as a member of the cluster.

    Args:
        worker: Its id.
        document: What it says of itself now.
        machine: Its ownership.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self, worker: str, document: WorkerDocument, machine: WorkerMachine, clock: Callable[[], float]
    ) -> None:
        self.worker = worker
        self.document = document
        self.machine = machine
        self.ensemble: str | None = None
        self.leads = False
        self.blocked_by: int | None = None  # a foreign session that holds our worker node
        self._clock = clock
        self._prepared: int | None = None  # the session in which the fixed nodes were seen
        self._assignment: Assignment | None = None  # the last one that could be read
        self._readable = False
        self._slots: dict[str, int] = {}  # leader only: registered topic → slots
        self._decided: object = None  # leader only: on what the last assignment was found to stand
        self._assigned: tuple[Assignment, WorkerDocument, frozenset[SlotKey]] | None = None

    def round(self, session: int) -> Round:
        """Return one round within `session`."""
        try:
            yield from self._work(session)
        except BrokenOffError:
            return False
        return True

    def _read(self, *requests: Request) -> Generator[Sequence[Request], Sequence[Reply], Sequence[Reply]]:
        replies = yield requests
        if any(reply is UNKNOWN for reply in replies):
            raise BrokenOffError
        return replies

    def _prepare(self) -> Generator[Sequence[Request], Sequence[Reply], None]:
        """Create the fixed nodes where they are missing, and learn the ensemble's identity."""
        topics = [owners_path(topic) for topic in self.document.topics]
        fixed = [Create(path, b"", ephemeral=False) for path in (WORKERS, TOPICS, OWNERS, *topics)]
        yield from self._read(*fixed, Create(ENSEMBLE, str(uuid4()).encode(), ephemeral=False))
        (identity,) = yield from self._read(Get(ENSEMBLE))
        if not isinstance(identity, tuple):  # deleted meanwhile
            raise BrokenOffError
        self.ensemble = identity[0].decode()

    def _work(self, session: int) -> Generator[Sequence[Request], Sequence[Reply], None]:
        mine = worker_path(self.worker)
        topics = sorted({*self.document.topics, *(topic for topic, _ in self.machine.held | self.machine.suspects)})
        sent_s = self._clock()
        _, me, leader, assignment, *lists = yield from self._read(
            Sync(),
            Get(mine),
            Look(LEADER, watch=True),
            Get(ASSIGNMENT, watch=True),
            *(Children(owners_path(topic), watch=True) for topic in topics),
        )
        self.machine.contacted(session, sent_s)
        if self._prepared != session:
            yield from self._prepare()
            self._prepared = session
        present = {
            (topic, int(name))
            for topic, names in zip(topics, lists, strict=True)
            for name in cast("list[str]", names)
            if name.isdecimal()
        }
        announced = yield from self._announce(session, cast("_Node", me))
        version = self._take(cast("_Node", assignment))
        yield from self._observe(session, present)
        if announced:
            yield from self._carry_out()
            yield from self._lead(session, cast("Stat | None", leader), version)

    def _announce(self, session: int, me: _Node) -> Generator[Sequence[Request], Sequence[Reply], bool]:
        """Bring our own node up to date; tell whether it is there and ours."""
        self.blocked_by = None
        data = self.document.to_json()
        path = worker_path(self.worker)
        if me is None:
            (created,) = yield from self._read(Create(path, data, ephemeral=True))
            if created is None:  # taken meanwhile, or the fixed nodes were deleted
                self._prepared = None
            return created is not None
        if me[1].session != session:
            self.blocked_by = me[1].session  # of an earlier session, or of another process: it has to go first
            return False
        if me[0] != data:
            yield from self._read(Put(path, data, me[1].version))
        return True

    def _take(self, node: _Node) -> int | None:
        """Take over the assignment and return its version, None if there is none. An unreadable one changes nothing."""
        read = Assignment.from_json(node[0]) if node else None
        self._readable = read is not None
        self._assignment = read or self._assignment
        return node[1].version if node else None

    def _observe(self, session: int, present: set[SlotKey]) -> Generator[Sequence[Request], Sequence[Reply], None]:
        assigned = self._my_slots()
        doubtful = sorted(self.machine.doubtful(assigned, present))
        stats = (yield from self._read(*(Look(owner_path(key)) for key in doubtful))) if doubtful else ()
        nodes = {key: cast("Stat | None", stat) for key, stat in zip(doubtful, stats, strict=True)}
        self.machine.observed(session, assigned, present, nodes, self._clock())

    def _my_slots(self) -> frozenset[SlotKey]:
        assignment, document = self._assignment, self.document
        if assignment is None:
            return frozenset()
        if self._assigned is None or self._assigned[0] is not assignment or self._assigned[1] is not document:
            self._assigned = assignment, document, assignment.of(self.worker, document.topics)
        return self._assigned[2]

    def _carry_out(self) -> Generator[Sequence[Request], Sequence[Reply], None]:
        plan = self.machine.plan(self._clock())
        name, guard = self.worker.encode(), worker_path(self.worker)
        changes: list[Request] = [Release(owner_path(key), guard) for key in plan.release]
        changes += [Create(owner_path(key), name, ephemeral=True) for key in plan.acquire]
        if not changes:
            return
        replies = yield changes
        released, acquired = replies[: len(plan.release)], replies[len(plan.release) :]
        for key, reply in zip(plan.release, released, strict=True):
            if reply is True:
                self.machine.released(key)
        for key, reply in zip(plan.acquire, acquired, strict=True):
            if reply is not UNKNOWN:
                self.machine.acquired(key, cast("Stat | None", reply))
        if any(reply is UNKNOWN for reply in replies):
            raise BrokenOffError

    def _lead(
        self, session: int, leader: Stat | None, version: int | None
    ) -> Generator[Sequence[Request], Sequence[Reply], None]:
        """Stand for leader if there is none; as leader write the assignment if another one is due."""
        self.leads = False
        if leader is None:
            (created,) = yield from self._read(Create(LEADER, self.worker.encode(), ephemeral=True))
            leader = cast("Stat | None", created)
        if leader is None or leader.session != session:
            return
        self.leads = True
        listed, registered = yield from self._read(Children(WORKERS, watch=True), Children(TOPICS, watch=True))
        workers = sorted(cast("list[str]", listed))
        known = {topic_name(node) for node in cast("list[str]", registered)}
        new = sorted(known - self._slots.keys())
        nodes = yield from self._read(
            *(Get(worker_path(name), watch=True) for name in workers), *(Get(topic_path(name)) for name in new)
        )
        contents = [cast("_Node", node) for node in nodes]
        self._slots = {topic: slots for topic, slots in self._slots.items() if topic in known}
        for topic, node in zip(new, contents[len(workers) :], strict=True):
            slots = slots_from_definition(node[0]) if node else None
            if slots:
                self._slots[topic] = slots
        documents = {
            name: WorkerDocument.from_json(node[0]) for name, node in zip(workers, contents, strict=False) if node
        }
        live = {name: document for name, document in documents.items() if document}
        basis = live, self._slots, self._assignment
        if self._readable and basis == self._decided:
            return
        assignment = decide(live, self._slots, self._assignment)
        if assignment is None and self._readable:
            self._decided = live, dict(self._slots), self._assignment
            return
        data = (assignment or self._assignment or Assignment()).to_json()
        if version is None:
            yield from self._read(Create(ASSIGNMENT, data, ephemeral=False))
        else:
            yield from self._read(Put(ASSIGNMENT, data, version))
