"""The logic of a worker's rounds in ZooKeeper, without I/O: it yields requests and receives the replies.

A round syncs with ZooKeeper's leader (which proves contact and makes the reads fresh), reads all state, recreates
missing nodes, updates the state machine, executes its plan, and does the leader's part if this worker leads. Rounds run
every few seconds and whenever a watch fires. Each starts from what it reads, so that the effect of a lost watch, reply
or node does not persist (pitfall 40).

A request that ZooKeeper refuses (an ACL, a quota) does not stop the round: the refusal is logged with its path, what
depends on it waits, and the rest goes on. A node that should be ephemeral and is not, as in a copied tree, has no
owner.

A ZooKeeper that was restored from a backup would issue the same czxids a second time. Redis stores the highest epoch of
each ensemble (`_ownership/redis_identity.py`). Before a worker acquires slots over a new connection, it gets that epoch
from Redis. If ZooKeeper's transaction id is lower, the ensemble gets a new identity: Redis then refuses its epochs
until an operator moves the topics over. So no czxid is the epoch of two owners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import cast
from uuid import uuid4

from rmq._ownership.assignment import Assignment
from rmq._ownership.leading import Leader
from rmq._ownership.machine import WorkerMachine
from rmq._ownership.problems import ProblemLog
from rmq._ownership.requests import (
    UNKNOWN,
    BrokenOffError,
    Children,
    Create,
    Get,
    Look,
    Node,
    OwnNodes,
    Put,
    Refused,
    RefusedError,
    Release,
    Reply,
    Steps,
    Sync,
    read,
)
from rmq._ownership.values import (
    ASSIGNMENT,
    ENSEMBLE,
    LEADER,
    OWNERS,
    TOPICS,
    WORKERS,
    SlotKey,
    Stat,
    WorkerDocument,
    owner_path,
    owners_path,
    slots_from_definition,
    topic_path,
    worker_path,
)
from rmq.errors import UnreadableDocumentError

FULL_S = 10.0
"""Delay before a full session is logged, seconds: slots that are being handed over still count."""

OWNERLESS_S = 60.0
"""Delay before unowned slots are logged, seconds: hand-overs and the expiry of a session take time."""

REST_S = 60.0
"""Pause of a leader that lacks permissions, seconds; meanwhile a worker with more permissions may lead."""

CHUNK = 1_024
"""Maximum number of nodes read or created between two proofs that the session is alive."""
ConnectionKey = tuple[int, int]
"""A session id, and the number of times its connection has broken."""


class TransactionIdCheck:
    """Compares ZooKeeper's transaction id with the highest epochs that Redis has seen."""

    def __init__(self, problems: ProblemLog) -> None:
        self.gated = False  # acquire slots only after `give` was called for the connection
        self._problems = problems
        self._marks: dict[str, int] = {}
        self._given: ConnectionKey | None = None
        self._connection: ConnectionKey | None = None
        self._reached = 0  # ZooKeeper's transaction id, read over this connection

    @property
    def awaits(self) -> ConnectionKey | None:
        """The connection that waits for `give`; None if no connection does."""
        return self._connection if self.gated and self._given != self._connection else None

    def give(self, connection: ConnectionKey, marks: Mapping[str, int]) -> None:
        """Record the highest epoch of each ensemble, read from Redis after this connection was opened."""
        self._given = connection
        for ensemble, zxid in marks.items():
            self.note(ensemble, zxid)

    def note(self, ensemble: str, zxid: int) -> None:
        """Record that an ensemble has issued this transaction id."""
        self._marks[ensemble] = max(zxid, self._marks.get(ensemble, 0))

    def reached(self, ensemble: str) -> bool:
        """Return whether ZooKeeper's transaction id has reached every epoch recorded for this ensemble."""
        return self._marks.get(ensemble, 0) <= self._reached

    def check(self, connection: ConnectionKey, ensemble: str, path: str) -> Steps[bool]:
        """Check that ZooKeeper's transaction id has not gone back, and return whether slots may be acquired.

        The worker's node at `path` is written once: the transaction id of that write is ZooKeeper's current one.

        Raises:
            BrokenOffError: The transaction id has gone back, so the ensemble got a new identity, which the next round
                reads.
        """
        if self._connection != connection:
            self._connection, self._reached = connection, 0
        if not self.reached(ensemble):
            (node,) = yield from read(Get(path))
            if isinstance(node, Refused):
                return False
            if not isinstance(node, tuple):
                raise BrokenOffError
            written, node = yield from read(Put(path, node[0], node[1].version), Get(path))
            if isinstance(written, Refused) or isinstance(node, Refused):
                return False
            if not written or not isinstance(node, tuple):
                raise BrokenOffError
            self._reached = node[1].mzxid
        if not self.reached(ensemble):
            return (yield from self._begin_anew(ensemble))
        return self.awaits is None

    def _begin_anew(self, ensemble: str) -> Steps[bool]:
        (node,) = yield from read(Get(ENSEMBLE))
        if isinstance(node, Refused):
            return False
        if isinstance(node, tuple) and node[0].decode(errors="replace") == ensemble:
            (written,) = yield from read(Put(ENSEMBLE, str(uuid4()).encode(), node[1].version))
            if isinstance(written, Refused):
                return False
            self._problems.tell(
                f"ZooKeeper was restored from an older state: its transaction id is {self._reached}, but Redis has seen"
                f" epoch {self._marks[ensemble]} of ensemble {ensemble}. It gets a new identity, since it would issue"
                " the same epochs again"
            )
        raise BrokenOffError


class Member:
    """One worker as a member of the cluster."""

    def __init__(
        self,
        worker: str,
        document: WorkerDocument,
        machine: WorkerMachine,
        clock: Callable[[], float],
        keeper: str = "ZooKeeper",
    ) -> None:
        self.worker = worker
        self.document = document
        self.machine = machine
        self.definitions: dict[str, bytes] = {}  # of consumed topics; recreated if they were deleted
        self.ensemble: str | None = None
        self.leads = False
        self.problems = ProblemLog(clock)
        self.transaction_ids = TransactionIdCheck(self.problems)
        self.leader = Leader(self.problems, machine.budget)
        self.new_identity: Callable[[], str] = lambda: str(uuid4())
        self.lists_own = False  # list the owner nodes of this session only, and look at those of other assigned slots
        self._clock = clock
        self._keeper = keeper  # name of the service, for messages
        self._prepared: int | None = None  # the session in which the permanent nodes were checked
        self._assignment: Assignment | None = None  # the last readable one
        self._readable = False
        self._assigned: tuple[Assignment, WorkerDocument, frozenset[SlotKey]] | None = None
        self.shut_out: RefusedError | None = None  # it keeps this worker out of the cluster
        self._refused: dict[tuple[str, str, type], list[Refused]] = {}  # of this round
        self._closed: frozenset[str] = frozenset()  # topics whose owners cannot be listed
        self._may_lead_from_s = 0.0
        self.reported: dict[str, str] = {}  # problems reported by other components

    def round(self, session: int, breaks: int = 0) -> Steps[bool]:
        """Run one round in `session`, whose connection broke `breaks` times; return whether it was completed."""
        self.problems.begin()
        self._refused.clear()
        self.shut_out = None
        for name, text in self.reported.items():
            if text:
                self.problems.note(name, text)
        try:
            yield from self._note_refusals(self._work(session, breaks))
        except BrokenOffError:
            return False
        self.problems.end()
        return True

    def _note_refusals(self, steps: Steps[None]) -> Steps[None]:
        """Forward requests and replies, and record refusals."""
        replies: Sequence[Reply] | None = None
        while True:
            try:
                requests = next(steps) if replies is None else steps.send(replies)
            except StopIteration:
                return
            replies = yield requests
            for reply in replies:
                if isinstance(reply, Refused):
                    alike = self._refused.setdefault((reply.place, reply.reason, type(reply.request)), [])
                    alike.append(reply)
                    text = alike[0].text(self._chroot, len({each.request for each in alike}) - 1)
                    self.problems.note(f"refused {alike[0].place} {type(reply.request).__name__}", text)

    @property
    def _chroot(self) -> str:
        return self.machine.budget.chroot

    def _is_shut_out(self, reply: object) -> bool:
        """Return whether a request that membership depends on was refused, and set `shut_out` if so."""
        if isinstance(reply, Refused):
            self.shut_out = RefusedError(reply.text(self._chroot))
        return isinstance(reply, Refused)

    def _clear(self, path: str, stat: Stat) -> Steps[None]:
        """Delete a node that should be ephemeral but belongs to no session: it would never expire.

        An ephemeral node may replace it meanwhile. The data of owner and leader nodes is never set, so their version is
        0: this node is written first, which raises its version, and deleted in that version only.
        """
        text = f"{self._chroot}{path} is not ephemeral, as in a copied tree; it will be deleted"
        self.problems.note(f"nobody's {path}", text)
        (data,) = yield from read(Get(path))
        if isinstance(data, tuple) and data[1].session == 0 and data[1].czxid == stat.czxid:
            yield from read(Put(path, data[0], data[1].version))
            yield from read(Release(path, worker_path(self.worker), data[1].version + 1))

    def _prepare(self, session: int) -> Steps[None]:
        """Create missing permanent nodes, and read the ensemble's identity."""
        consumed = sorted(self.document.topics)
        fixed = dict.fromkeys((WORKERS, TOPICS, OWNERS, *map(owners_path, consumed)), b"")
        fixed |= {topic_path(topic): self.definitions[topic] for topic in consumed if topic in self.definitions}
        # within a session ZooKeeper cannot have been set up anew: only the node was deleted
        known = self.ensemble if self._prepared == session else None
        fixed[ENSEMBLE] = (known or self.new_identity()).encode()
        there = yield from read(*map(Look, fixed))  # creating existing nodes would report refusals that do not matter
        missing = [path for path, stat in zip(fixed, there, strict=True) if not isinstance(stat, Stat)]
        *made, node = yield from read(*(Create(path, fixed[path], ephemeral=False) for path in missing), Get(ENSEMBLE))
        if isinstance(node, tuple):
            self._note_ensemble(node[0])
            self._prepared = session
        elif not any([self._is_shut_out(reply) for reply in (*made, node)]):
            raise BrokenOffError  # deleted meanwhile

    def _note_ensemble(self, identity: bytes) -> None:
        """Record the ensemble's identity, and report a change."""
        before, self.ensemble = self.ensemble, identity.decode(errors="replace")
        if before not in (None, self.ensemble):
            self.problems.tell(
                f"{self._keeper}'s identity changed from ensemble {before} to {self.ensemble}: Redis refuses its epochs"
                f" until RmqClient.adopt(topic, {before!r}) moves each topic over"
            )

    def _work(self, session: int, breaks: int) -> Steps[None]:
        consumed = self.document.topics  # another thread may replace the document meanwhile
        topics = sorted({*consumed, *(topic for topic, _ in self.machine.held | self.machine.suspects)})
        sent_s = self._clock()
        _, me, leader, assignment, ensemble, *rest = yield from read(
            Sync(),
            Get(worker_path(self.worker)),
            Look(LEADER, watch=True),
            Get(ASSIGNMENT, watch=True),
            Get(ENSEMBLE),
            *(Children(owners_path(topic), watch=True, own=self.lists_own) for topic in topics),
            *(Get(topic_path(topic)) for topic in consumed),
        )
        self.machine.contacted(session, sent_s)
        listed = dict(zip(topics, cast("list[list[str] | OwnNodes | Refused | None]", rest), strict=False))
        registered = dict(zip(consumed, cast("list[Node]", rest[len(topics) :]), strict=True))
        gone = ensemble is None or any(
            listed[topic] is None or (node is None and topic in self.definitions) for topic, node in registered.items()
        )
        if gone or self._prepared != session:
            yield from self._prepare(session)
        elif isinstance(ensemble, tuple):
            self._note_ensemble(ensemble[0])
        self._closed = frozenset(topic for topic, names in listed.items() if isinstance(names, Refused))
        present = {key for key in self.machine.held | self.machine.suspects if key[0] in self._closed}
        owned: dict[str, int] = {}  # number of owned slots of each consumed topic
        for topic, reply in listed.items():
            names = reply.names if isinstance(reply, OwnNodes) else reply if isinstance(reply, list) else []
            slots = {(topic, int(name)) for name in names if _is_slot(name)}
            present |= slots
            known = sum(slot < consumed.get(topic, 0) for _, slot in slots)  # a topic may have had more slots before
            owned[topic] = reply.number if isinstance(reply, OwnNodes) else known
        announced = yield from self._announce(session, cast("Node", me))
        version = self._take(cast("Node", assignment))
        yield from self._observe(session, present)
        if announced:
            self._report_ownerless(consumed, registered, owned)
            may_acquire = self._prepared == session and (
                yield from self.transaction_ids.check((session, breaks), self.ensemble or "", worker_path(self.worker))
            )
            yield from self._carry_out(may_acquire=may_acquire)
            yield from self._report_passed_over(consumed)
            yield from self._lead(session, leader, version, able=not isinstance(assignment, Refused))

    def _announce(self, session: int, me: Node) -> Steps[bool]:
        """Create or update the node of this worker; return whether it exists and belongs to this session."""
        data = self.document.to_json()
        path = worker_path(self.worker)
        if me is None:
            (created,) = yield from read(Create(path, data, ephemeral=True))
            if created is None:  # created by another session, or the permanent nodes were deleted
                self._prepared = None
            return not self._is_shut_out(created) and created is not None
        if isinstance(me, Refused):
            return not self._is_shut_out(me)
        if me[1].session == 0:
            yield from self._clear(path, me[1])
            return False
        if me[1].session != session:
            text = f"the worker node of {self.worker} belongs to session {me[1].session:#x}; waiting for its end."
            self.problems.note("blocked", f"{text} If it does not end, two live workers have this id")
            return False
        if me[0] != data:
            yield from read(Put(path, data, me[1].version))
        return True

    def _take(self, node: Node) -> int | None:
        """Read the assignment and return its version, None if it does not exist. An unreadable one changes nothing."""
        self._readable = False
        if not isinstance(node, tuple):
            return None
        try:
            self._assignment = Assignment.from_json(node[0])
            self._readable = True
        except UnreadableDocumentError as error:
            self.problems.note(
                "assignment", f"{error}. Slots stay with their owners until the leader writes a readable assignment"
            )
        return node[1].version

    def _observe(self, session: int, present: set[SlotKey]) -> Steps[None]:
        assigned = self._my_slots()
        if self._closed:
            held = self.machine.held
            assigned = frozenset(key for key in assigned if key[0] not in self._closed or key in held)
        doubtful = sorted(self.machine.doubtful(assigned, present, own=self.lists_own))
        nodes: dict[SlotKey, Stat | None] = {}
        for start in range(0, len(doubtful), CHUNK):
            part = doubtful[start : start + CHUNK]
            if start:  # thousands of reads may take longer than the watchdog's deadline
                sent_s = self._clock()
                yield from read(Sync())
                self.machine.contacted(session, sent_s)
            stats = yield from read(*(Look(owner_path(key)) for key in part))
            looked_at = zip(part, stats, strict=True)
            nodes.update((key, stat) for key, stat in looked_at if stat is None or isinstance(stat, Stat))
        self.machine.observed(session, assigned, present | nodes.keys(), nodes, self._clock())
        for key in sorted(assigned & nodes.keys()):
            if (stat := nodes[key]) is not None and stat.session == 0:
                yield from self._clear(owner_path(key), stat)

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

    def _report_ownerless(
        self, consumed: Mapping[str, int], registered: Mapping[str, Node], owned: Mapping[str, int]
    ) -> None:
        """Report slots of consumed topics that have no owner, with the reason."""
        for topic, mine in consumed.items():
            node = registered[topic]
            if isinstance(node, Refused) or topic in self._closed:
                continue  # reported as a refusal, with its path
            if node is None and topic not in self.definitions:
                self.problems.note(f"topic {topic}", f"topic {topic} is not registered in {self._keeper}", OWNERLESS_S)
                continue
            try:
                slots = mine if node is None else slots_from_definition(node[0])
            except UnreadableDocumentError as error:
                self.problems.note(f"topic {topic}", f"topic {topic} gets no new owners: {error}")
                continue
            if slots != mine:
                text = f"topic {topic} has {slots} slots in {self._keeper}, but this worker expects {mine}"
                self.problems.note(f"topic {topic}", f"{text}; it gets none of them")
                continue
            free = slots - owned[topic]
            if free > 0:
                text = f"{free} of {slots} slots of topic {topic} have no owner: {self._why_ownerless(topic)}"
                self.problems.note(f"topic {topic}", text, OWNERLESS_S)

    def _why_ownerless(self, topic: str) -> str:
        assignment = self._assignment
        if not self._readable or assignment is None:
            return "there is no assignment, or this worker cannot read it"
        owners = assignment.topics.get(topic)
        if owners is None:
            leaves_out = "omits the topic" if assignment.partial else "does not contain the topic"
            return f"the assignment {leaves_out}; see the leader's log"
        unassigned = owners.count(None)
        if unassigned:
            return f"{unassigned} of them do not fit into the sessions of the live workers; start more workers"
        return "the workers that they are assigned to have not acquired them"

    def _report_passed_over(self, consumed: Mapping[str, int]) -> Steps[None]:
        """Report that this worker gets no slots of a topic although it should: only the leader's log has the reason."""
        assignment = self._assignment
        if not self._readable or assignment is None or self._my_slots():
            return
        for topic, slots in consumed.items():
            owners = Counter(owner for owner in assignment.topics.get(topic, ()) if owner is not None)
            if owners.total() > slots or max(owners.values(), default=0) < 2:  # there may be more workers than slots
                continue
            nodes = yield from read(*(Get(worker_path(name)) for name in owners))
            weights = [_weight(node) for node in nodes]
            if slots * self.document.weight >= sum(weights) + self.document.weight:
                text = (
                    f"the leader assigns worker {self.worker} none of the {slots} slots of topic {topic}; its log has"
                    " the reason. It skips workers of another Redis, and workers whose nodes it has no permission to"
                    f" read: if logins differ, check the ACL of {self._chroot}{worker_path(self.worker)}"
                )
                self.problems.note(f"neglected {topic}", text, FULL_S)

    def _carry_out(self, *, may_acquire: bool) -> Steps[None]:
        epochs = self.machine.epochs()  # before the plan, which leaves out what it releases
        plan = self.machine.plan(self._clock(), may_acquire=may_acquire)
        if self.machine.left_out:
            text = f"{self.machine.left_out} slots assigned to worker {self.worker} have no owner"
            self.problems.note("full", f"{text}: {self.machine.budget.advice()}", FULL_S)
        name, guard = self.worker.encode(), worker_path(self.worker)
        yield from self._change([(key, Release(owner_path(key), guard, epoch=epochs[key])) for key in plan.release])
        yield from self._change([(key, Create(owner_path(key), name, ephemeral=True)) for key in plan.acquire])

    def _change(self, requests: Sequence[tuple[SlotKey, Release | Create]]) -> Steps[None]:
        """Send the requests, and report their results to the machine."""
        for start in range(0, len(requests), CHUNK):
            part = requests[start : start + CHUNK]
            replies = yield [request for _, request in part]
            for (key, _), reply in zip(part, replies, strict=True):
                if reply is True:
                    self.machine.released(key)
                elif reply is None or isinstance(reply, Stat):
                    self.machine.acquired(key, reply)
            if UNKNOWN in replies:
                raise BrokenOffError

    def _lead(self, session: int, leader: Reply, version: int | None, *, able: bool) -> Steps[None]:
        """Try to become leader if there is none; as leader, write the assignment if it has changed.

        A leader without the permissions it needs (`able`: to read the assignment) lets other workers lead for a while.
        """
        if isinstance(leader, Stat) and leader.session == 0:
            yield from self._clear(LEADER, leader)
            leader = None
        if leader is None and self._clock() >= self._may_lead_from_s:
            (leader,) = yield from read(Create(LEADER, self.worker.encode(), ephemeral=True))
        self.leads = isinstance(leader, Stat) and leader.session == session
        if isinstance(leader, Stat) and self.leads:
            done = able and (yield from self.leader.lead(self._assignment, version, readable=self._readable))
            if not done:
                self._may_lead_from_s = self._clock() + REST_S
                (gone,) = yield from read(Release(LEADER, worker_path(self.worker), epoch=leader.czxid))
                self.leads = gone is not True


def _weight(node: Reply) -> int:
    try:
        return WorkerDocument.from_json(node[0]).weight if isinstance(node, tuple) else 1
    except UnreadableDocumentError:
        return 1


def _is_slot(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10
