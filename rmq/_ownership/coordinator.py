"""The coordinator: a background thread that acquires and keeps this worker's slots in ZooKeeper."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from math import inf
from typing import TypeVar, cast

from rmq._io.backend import THREADS, Runtime
from rmq._io.reports import reporter
from rmq._model.display import brief
from rmq._model.times import monotonic_s
from rmq._model.workers import process_name
from rmq._ownership.assignment import NO_LIMIT, SESSION_BYTES, SessionBudget
from rmq._ownership.machine import WorkerMachine
from rmq._ownership.member import ConnectionKey, Member
from rmq._ownership.requests import UNKNOWN, Children, Create, Get, Keeper, Put, Refused, RefusedError, Reply, Request
from rmq._ownership.rounds import Rounds
from rmq._ownership.values import (
    WORKERS,
    DigestAuth,
    Ownership,
    SaslAuth,
    SlotKey,
    Tls,
    WorkerDocument,
    check,
    check_worker,
    is_chroot,
    owners_path,
    topic_path,
    worker_path,
)
from rmq.errors import CoordinationError, ForkedClientError, UnreadableDocumentError

T = TypeVar("T")
ClientT = TypeVar("ClientT", bound=Keeper)
_LOG = reporter("rmq.coordination")
DRAIN_S = 30.0
"""Default time that running handlers have to finish, in seconds."""

_GATHER_S = 0.02
"""Pause after a wake-up to collect others, seconds: one change in ZooKeeper usually triggers several watches."""


class Coordinator:
    """Represents this process as a worker in ZooKeeper: acquires slots, keeps them and hands them over.

    Every slot of a consumed topic has at most one owner in the whole cluster. Create the coordinator in the process
    that uses it: a ZooKeeper session does not survive a fork.

    Args:
        hosts: Servers of the ensemble, as `host:port,host:port…`.
        worker_id: Name of this worker, unique among the live workers. A worker that restarts with the same name gets
            its slots back. None generates a name.
        chroot: Parent path of all nodes.
        session_timeout_s: Seconds without contact after which ZooKeeper ends the session. The servers allow 2 to 20 of
            their ticks (usually 4 to 40 s).
        weight: Capacity relative to the other workers, 1 to 1000.
        auth: Login; all nodes are then accessible to this login only. None connects without a login.
        tls: Settings of TLS; None for plain TCP.
        drain_timeout_s: Seconds that a revoked slot waits for its last handler; then it is handed over regardless. None
            uses the client's drain time, or 30 s without a client. `leave` can set another for a worker that leaves.
        session_bytes: Maximum bytes of the paths of this session's nodes, from 1,000. ZooKeeper writes them in one
            transaction when the session ends; one that exceeds `jute.maxbuffer` takes the whole ensemble down. Raise it
            only after `jute.maxbuffer` on all servers, and stay a tenth below that.
        on_change: Called from the background thread after every change of `owned` or `revoking`, and sometimes without
            one; must not block. Set it before a client starts its listeners with this coordinator: the client replaces
            it with a function that wakes the listeners and calls yours. A function that is set later replaces the
            client's, and the listeners then notice changes up to five seconds late.

    Raises:
        InvalidValueError: A value is invalid.

    Source: ZooKeeper Programmer's Guide 3.9 (sessions, ephemeral nodes, czxid).

    Examples:
        >>> coordinator = Coordinator("zk1:2181,zk2:2181", weight=2, session_timeout_s=5)
    """

    _runtime: Runtime = THREADS
    _client_class: Callable[..., Keeper] | None = None  # `ZooKeeperClient` by default

    def __init__(
        self,
        hosts: str,
        worker_id: str | None = None,
        *,
        chroot: str = "/rmq",
        session_timeout_s: float = 10.0,
        weight: int = 1,
        auth: DigestAuth | SaslAuth | None = None,
        tls: Tls | None = None,
        drain_timeout_s: float | None = None,
        session_bytes: int = SESSION_BYTES,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        from rmq._ownership.zookeeper import ZooKeeperClient  # imports kazoo, which only users of ZooKeeper need

        check(is_chroot(chroot), f"chroot is {chroot!r}; it must be a path such as /rmq")
        check(isinstance(hosts, str) and bool(hosts), f"hosts is {brief(hosts)}; it must be like host:2181,host:2181")  # pyright: ignore[reportUnnecessaryIsInstance]
        known = auth is None or isinstance(auth, DigestAuth | SaslAuth)  # pyright: ignore[reportUnnecessaryIsInstance]
        check(known, f"auth is a {type(auth).__name__}; it must be a DigestAuth or a SaslAuth")  # no value: a password
        check(tls is None or isinstance(tls, Tls), f"tls is a {type(tls).__name__}; it must be a Tls")  # pyright: ignore[reportUnnecessaryIsInstance]
        large = type(session_bytes) is int and session_bytes >= 1000
        check(large, f"session_bytes is {session_bytes!r}; it must be a whole number of 1000 or more")
        self.on_change: Callable[[], None] | None = on_change

        def connect(wake: Callable[[], None], broken: Callable[[], None]) -> Keeper:
            make = self._client_class or ZooKeeperClient
            return make(hosts, chroot, session_timeout_s, wake, broken, auth=auth, tls=tls)

        self.worker_id = worker_id or process_name()
        check_worker(self.worker_id, session_timeout_s, weight, drain_timeout_s)
        _, slash, above = hosts.partition("/")
        budget = SessionBudget(session_bytes, self.worker_id, slash + above + chroot)
        self._set_up(connect, session_timeout_s, weight, drain_timeout_s, budget)

    def _set_up(
        self,
        connect: Callable[[Callable[[], None], Callable[[], None]], ClientT],
        session_timeout_s: float,
        weight: int,
        drain_timeout_s: float | None,
        budget: SessionBudget,
    ) -> ClientT:
        """Prepare the worker `worker_id`; return the keeper that `connect` makes from two functions; see `Keeper`."""
        self._pid = os.getpid()
        self._wake = self._runtime.event()
        self._stopping = self._runtime.event()
        self._first_round = self._runtime.event()
        self._thread = self._runtime.job(self._run, "rmq-coordinator")
        self._drain_at_end = True
        self._drain_is_fixed = drain_timeout_s is not None
        self._stop_by_s = inf  # deadline of a stop, even if slots are still being drained
        wake, broke = self._wake.set, lambda: self._rounds.connection_broke()
        client = connect(wake, broke)
        self._client: Keeper = client
        room = None if budget is NO_LIMIT else budget.room
        document = WorkerDocument({}, weight, socket.gethostname(), self._pid, room)
        drain_s = DRAIN_S if drain_timeout_s is None else drain_timeout_s
        machine = WorkerMachine(session_timeout_s, drain_s, budget=budget)
        self._member = Member(self.worker_id, document, machine, monotonic_s, client.name)
        changed, lock = lambda: self.on_change and self.on_change(), self._runtime.lock()
        self._rounds = Rounds(self._client, self._member, changed, lock)
        self._failure: Exception | None = None
        return client

    # --- for any thread; none of these waits

    def owned(self) -> Mapping[SlotKey, Ownership]:
        """Return the slots from which this worker may claim now.

        Returns:
            (topic, slot) → ownership; empty while the connection is broken and after the watchdog has dropped all
            slots.

        Guarantee: May be called from any thread; takes no lock and sends no request. At any time, a slot is returned to
            at most one process of the cluster. A process that is suspended after this call may use it late; the epoch
            protects against that.
        """
        self._check_process()
        return self._rounds.owned()

    def still_owner(self, ownership: Ownership) -> bool:
        """Return whether no other worker can own the slot yet. Also true while the slot is being drained."""
        self._check_process()
        return self._rounds.still_owner(ownership)

    def revoking(self) -> frozenset[SlotKey]:
        """Return the revoked slots: do not claim from them any more, and call `drained` after their last handler."""
        self._check_process()
        return self._rounds.revoking()

    def awaited(self, topic: str) -> frozenset[int]:
        """Return the slots of a topic that are assigned to this worker, as far as it knows, but not owned yet."""
        self._check_process()
        with self._rounds.lock:
            return frozenset(slot for place, slot in self._member.machine.awaited if place == topic)

    @property
    def leads(self) -> bool:
        """True if this worker was the leader, which writes the assignment, in its last round."""
        return self._member.leads

    @property
    def ensemble(self) -> str | None:
        """Identity of the ensemble; None until it has been read."""
        return self._member.ensemble

    @property
    def drain_timeout_s(self) -> float:
        """Seconds that a revoked slot waits for its last handler."""
        return self._member.machine.drain_timeout_s

    @property
    def troubles(self) -> tuple[str, ...]:
        """Descriptions of current problems that keep slots from being owned or served. They are also logged."""
        with self._rounds.lock:
            return self._member.problems.current()

    @property
    def connected(self) -> bool:
        """True if there is a connection to ZooKeeper."""
        return self._client.session is not None

    def drained(self, topic: str, slot: int) -> None:
        """Report that no handler or claim of a revoked slot is running, so that the slot is handed over.

        Guarantee: Does nothing for a slot that is not being revoked.
        """
        self._check_process()
        with self._changing() as member:
            member.machine.drained((topic, slot))

    def start(self, timeout_s: float = 15.0) -> None:
        """Connect, register this worker and start acquiring slots.

        Raises:
            CoordinationError: No server answers in time, the login is refused, or it lacks permissions.
        """
        self._check_process()
        self._thread.start()
        answered = self._first_round.wait(timeout_s)
        failure = self._failure
        if answered and failure is None:
            return
        reason = failure or self._client.refusal or "servers accept connections, but do not reply"
        self.stop(drain=False)
        if answered and failure is not None:
            raise failure
        raise CoordinationError(
            f"no {self._client.name} server answered within {timeout_s:g} s ({reason})"
        ) from failure

    def drain_within(self, drain_s: float) -> None:
        """Set the seconds that a revoked slot waits for its last handler, unless `drain_timeout_s` was given."""
        if not self._drain_is_fixed:
            self._member.machine.drain_timeout_s = drain_s

    def leave(self, drain_s: float | None = None) -> None:
        """Start handing over all slots, each once `drained` is called for it. Returns at once; `stop` waits.

        Args:
            drain_s: Seconds from now that a slot may wait for its last handler; by default the drain timeout.

        Guarantee: May be called again; the first call's `drain_s` applies.
        """
        self._check_process()
        with self._changing() as member:
            if not self._stopping.is_set():
                drain_s = self.drain_timeout_s if drain_s is None else drain_s
                self._stop_by_s = monotonic_s() + drain_s + 2.0
                member.machine.leave(monotonic_s(), drain_s)
                member.document = replace(member.document, topics={})
                self._stopping.set()

    def stop(self, *, drain: bool = True) -> None:
        """Hand over all slots, and end the session when that is done.

        Args:
            drain: Wait for `drained` of every slot, up to the drain timeout. If False, all nodes are deleted at once.

        Guarantee: May be called again.
        """
        self._drain_at_end = self._drain_at_end and drain
        self.leave()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Coordinator:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def register_topic(self, name: str, definition_json: str) -> str:
        """Register a topic's definition, unless one is registered already.

        Returns:
            The registered definition: `definition_json`, or the one that was registered earlier.

        Raises:
            CoordinationError: ZooKeeper does not answer, the login lacks permissions, or the definition is deleted
                meanwhile.

        Guarantee: Safe to repeat.
        """
        self._check_process()
        nodes = {topic_path(name): definition_json.encode(), owners_path(name): b""}
        creates = (Create(path, data, ephemeral=False) for path, data in nodes.items())
        *made, node = self._ask(*creates, Get(topic_path(name)))
        if not isinstance(node, tuple):
            if refused := [reply for reply in (node, *made) if isinstance(reply, Refused)]:
                raise RefusedError(refused[0].text(self._member.machine.budget.chroot), topic=name)
            raise CoordinationError(
                f"the definition of topic {name} was deleted from {self._client.name} meanwhile; try again", topic=name
            )
        with self._rounds.lock:
            self._member.definitions[name] = node[0]
        return node[0].decode()

    def replace_topic(self, name: str, definition_json: str) -> str:
        """Replace a topic's definition if none of its slots has an owner. A deleted topic leaves its definition behind.

        Returns:
            The definition that is registered now: `definition_json`, or the earlier one.

        Raises:
            CoordinationError: ZooKeeper does not answer, the login lacks permissions, or the definition is deleted
                meanwhile.

        Guarantee: Safe to repeat. A worker that expects another number of slots is assigned none.
        """
        owned, node = self._ask(Children(owners_path(name)), Get(topic_path(name)))
        if owned == [] and isinstance(node, tuple):
            self._ask(Put(topic_path(name), definition_json.encode(), node[1].version))
        return self.register_topic(name, definition_json)

    def check_slots(self, topics: Mapping[str, int]) -> None:
        """Check that owners have room for topics that this worker is to consume, before any of them is registered.

        Args:
            topics: Name of a topic → its number of slots.

        Raises:
            InvalidValueError: This worker, or all live workers together, would consume more slots than owners in Redis
                allow. ZooKeeper has no such bound.
        """

    def consume(self, topic: str, slots: int) -> None:
        """Announce that this worker consumes a registered topic, so that it is assigned slots.

        Args:
            topic: Name of the topic.
            slots: Number of slots that this worker expects; if the registered number differs, the worker gets no slots.

        Guarantee: Safe to repeat; does nothing after `stop`.
        """
        self._check_process()
        with self._changing() as member:
            topics = {**member.document.topics, topic: slots}
            if self._stopping.is_set() or topics == member.document.topics:
                return
            member.document = replace(member.document, topics=topics)
            if shortage := member.machine.budget.shortage(topics):
                member.problems.tell(shortage)

    def others(self) -> dict[str, WorkerDocument]:
        """Return the documents of the other live workers by name, without those that cannot be read.

        Raises:
            CoordinationError: ZooKeeper does not answer, or the login lacks permissions.
        """
        (listed,) = self._ask(Children(WORKERS))
        if isinstance(listed, Refused):
            raise RefusedError(listed.text(self._member.machine.budget.chroot))
        names = [name for name in cast("list[str] | None", listed) or () if name != self.worker_id]
        others: dict[str, WorkerDocument] = {}
        for name, node in zip(names, self._ask(*(Get(worker_path(name)) for name in names)), strict=True):
            with contextlib.suppress(UnreadableDocumentError):
                if isinstance(node, tuple) and node[1].session:
                    others[name] = WorkerDocument.from_json(node[0])
        return others

    # --- the connection between this ensemble and Redis

    def belong_to(self, redis: str) -> None:
        """Set the identity of the Redis that this worker serves; empty if unknown."""
        with self._changing() as member:
            member.document = replace(member.document, redis=redis)

    def expect_marks(self) -> None:
        """Acquire slots over each connection only once `give_marks` was called for it. Call this before `start`."""
        self._member.transaction_ids.gated = True

    @property
    def awaited_marks(self) -> ConnectionKey | None:
        """The connection for which `give_marks` must be called before slots are acquired; `None` if there is none."""
        with self._rounds.lock:
            return self._member.transaction_ids.awaits

    def give_marks(self, connection: ConnectionKey, marks: Mapping[str, int]) -> None:
        """Report the highest epoch that Redis has recorded for each ensemble, so that this worker may acquire slots.

        A ZooKeeper whose transaction id is below the epoch was restored from a backup: it gets a new identity, since
        it would issue the same epochs again.

        Args:
            connection: The value of `awaited_marks` before the epochs were read.
            marks: Identity of an ensemble → its highest recorded epoch.
        """
        with self._changing() as member:
            member.transaction_ids.give(connection, marks)

    def fenced(self, epoch: int, ensemble: str, key: SlotKey | None = None) -> None:
        """Report that Redis has refused a call because it has recorded a higher epoch.

        A ZooKeeper whose transaction id is below that epoch was restored from a backup, and gets a new identity.

        Args:
            epoch: The epoch that Redis has recorded.
            ensemble: Identity of the ensemble that issued it. This ZooKeeper may have got a new identity since.
            key: The slot of the call; not needed with ZooKeeper.
        """
        with self._changing() as member:
            member.transaction_ids.note(ensemble, epoch)

    def report(self, name: str, text: str) -> None:
        """Add a problem to `troubles`; with an empty text, remove it.

        Args:
            name: Identifies the problem: a later report with this name replaces the text.
            text: Description of the problem; empty if it is solved.
        """
        with self._changing() as member:
            member.reported[name] = text

    def verified(self, marks: Mapping[str, int], timeout_s: float = 15.0) -> str:
        """Return the ensemble's identity once ZooKeeper's transaction id has reached the epoch recorded for it.

        If it is lower, ZooKeeper was restored from a backup: it gets a new identity, which is returned.

        Args:
            marks: Identity of an ensemble → its highest recorded epoch.
            timeout_s: Seconds to wait.

        Raises:
            CoordinationError: The identity and the transaction id could not be read within `timeout_s`.
        """

        def counted() -> str | None:
            with self._changing() as member:
                for ensemble, epoch in marks.items():
                    member.transaction_ids.note(ensemble, epoch)
                identity = member.ensemble
                return identity if identity is not None and member.transaction_ids.reached(identity) else None

        return self._poll(counted, timeout_s)

    def _ask(self, *requests: Request) -> list[Reply]:
        """Send requests, which must be safe to repeat, until all have a reply."""

        def replies() -> list[Reply] | None:
            session = self._client.session
            replies = None if session is None else self._client.carry_out(session, requests)
            return None if replies is None or UNKNOWN in replies else replies

        return self._poll(replies)

    def _poll(self, look: Callable[[], T | None], timeout_s: float = 15.0) -> T:
        """Call `look` until it returns a result, and return that."""
        deadline_s = monotonic_s() + timeout_s
        while monotonic_s() < deadline_s and not self._stopping.is_set():
            if (result := look()) is not None:
                return result
            self._runtime.sleep(0.05)
        raise CoordinationError(f"{self._client.name} has not answered within {timeout_s:g} s")

    # --- the background thread

    def _run(self) -> None:
        self._client.start()
        while not self._stopping.is_set() or (
            self._drain_at_end and self._member.machine.held and monotonic_s() < self._stop_by_s
        ):
            try:
                if self._rounds.step():
                    self._failure = self._member.shut_out
                    self._first_round.set()
            except Exception as error:  # an error must not end this thread: the worker would lose its slots for good
                self._failure = error
                _LOG.warning("a round of coordination with %s failed; it will be retried: %s", self._client.name, error)
                if isinstance(error, CoordinationError):
                    self._first_round.set()
            if self._wake.wait(self._rounds.pause_s()):
                self._stopping.wait(_GATHER_S)
                self._wake.clear()
        self._client.stop()
        self._rounds.end()

    @contextlib.contextmanager
    def _changing(self) -> Generator[Member]:
        """Lock the member for a change, and wake the background thread afterwards."""
        with self._rounds.lock:
            yield self._member
        self._wake.set()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedClientError(
                f"a session of {self._client.name} does not survive a fork; create the client after forking"
            )
