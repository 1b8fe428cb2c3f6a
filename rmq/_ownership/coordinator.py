"""The coordinator: one background thread that keeps this worker's slots, and cheap answers for all others."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from math import inf
from typing import Any, TypeVar, cast

from rmq._io.backend import THREADS, Runtime
from rmq._model.checks import is_number
from rmq._model.display import brief
from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._model.workers import process_name
from rmq._ownership.capacity import SESSION_BYTES, SessionBudget
from rmq._ownership.documents import WORKERS, WorkerDocument, owners_path, topic_path, worker_path
from rmq._ownership.machine import WorkerMachine
from rmq._ownership.member import Member
from rmq._ownership.requests import UNKNOWN, Children, Create, Get, Refused, RefusedError, Reply, Request
from rmq._ownership.rounds import Rounds
from rmq._ownership.transaction_ids import ConnectionKey
from rmq._ownership.values import DigestAuth, Ownership, SaslAuth, SlotKey, Tls, check, is_chroot, is_worker_name
from rmq.errors import CoordinationError, ForkedClientError, UnreadableDocumentError

T = TypeVar("T")
_LOG = reporter("rmq.coordination")
DRAIN_S = 30.0
"""How long to wait for running handlers, unless the client or the coordinator says otherwise."""

_GATHER_S = 0.02
"""How long a wake-up waits for others: one change in ZooKeeper usually brings several."""


class Coordinator:
    """This process as a worker in ZooKeeper: gets slots, keeps them, hands them over.

    Every slot of a consumed topic has at most one owner in the whole cluster. Make it in the process that uses it: a
    ZooKeeper session does not survive a fork.

    Args:
        hosts: `host:port,host:port…` of the ensemble.
        worker_id: Name of this worker, unique among the live ones; one that a restart keeps gets its slots back. None
            makes one up.
        chroot: Path below which everything lies.
        session_timeout_s: How long ZooKeeper waits for a silent worker; the servers grant 2 to 20 of their ticks
            (usually 4 to 40 s).
        weight: Capacity against the other workers', a whole number from 1.
        auth: Login; then every node is open to this login only.
        tls: Certificates; None for plain TCP.
        drain_timeout_s: How long a revoked slot waits for its last handler before it is handed over all the same. None
            for the drain time that the client runs with, 30 s without one. `leave` gives a worker that leaves another.
        session_bytes: What the paths of this session's nodes may take, from 1,000. ZooKeeper writes them all down when
            the session ends; what exceeds `jute.maxbuffer` takes the whole ensemble down. Raise it only after
            `jute.maxbuffer` on all servers, and stay a tenth below that.
        on_change: Called, from the background thread, after every change of `owned` or `revoking`, and sometimes
            without one; must not block. Set it before a client starts its listeners with this coordinator: the client
            then puts its own function there, which wakes them and calls yours. A function that is set later replaces
            the client's: then the listeners notice changes up to five seconds late.

    Raises:
        InvalidValueError: A value breaks its rule.

    Source: ZooKeeper Programmer's Guide 3.9 (sessions, ephemeral nodes, czxid).

    Examples:
        >>> coordinator = Coordinator("zk1:2181,zk2:2181", weight=2, session_timeout_s=5)
    """

    _runtime: Runtime = THREADS
    _client_class: Callable[..., Any] | None = None  # a `ZooKeeperClient`

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
        from rmq._ownership.zookeeper import ZooKeeperClient  # with kazoo: only those with a ZooKeeper pay for it

        self.worker_id = worker_id or process_name()
        check(is_worker_name(self.worker_id), f"worker_id {self.worker_id!r} must be 1 to 128 of A-Z a-z 0-9 . _ : -")
        check(is_chroot(chroot), f"chroot {chroot!r} must be like /rmq")
        known = type(weight) is int and 1 <= weight <= 1000
        check(known, f"weight is {weight!r}; it must be a whole number, 1 to 1000")
        timely = is_number(session_timeout_s) and 0 < session_timeout_s <= 86_400
        check(timely, f"session_timeout_s is {brief(session_timeout_s)}; it must be above 0, up to 86400")
        drain_s = DRAIN_S if drain_timeout_s is None else drain_timeout_s
        timely = is_number(drain_s) and drain_s >= 0
        check(timely, f"drain_timeout_s is {brief(drain_s)}; it must not be below 0")
        check(isinstance(hosts, str) and bool(hosts), f"hosts is {brief(hosts)}; it must be like host:2181,host:2181")  # pyright: ignore[reportUnnecessaryIsInstance]
        known = auth is None or isinstance(auth, DigestAuth | SaslAuth)  # pyright: ignore[reportUnnecessaryIsInstance]
        check(known, f"auth is a {type(auth).__name__}; it must be a DigestAuth or a SaslAuth")  # no value: a password
        check(tls is None or isinstance(tls, Tls), f"tls is {type(tls).__name__}; it must be a Tls")  # pyright: ignore[reportUnnecessaryIsInstance]
        large = type(session_bytes) is int and session_bytes >= 1000
        check(large, f"session_bytes is {session_bytes!r}; it must be a whole number from 1000")
        self.on_change = on_change
        self._pid = os.getpid()
        self._wake = self._runtime.event()
        self._stopping = self._runtime.event()
        self._first_round = self._runtime.event()
        self._thread = self._runtime.job(self._run, "rmq-coordinator")
        self._drain_at_end = True
        self._drain_is_fixed = drain_timeout_s is not None
        self._stop_by_s = inf  # when it ends although slots are still drained
        wake, broke = self._wake.set, lambda: self._rounds.connection_broke()
        connect = self._client_class or ZooKeeperClient
        self._client: ZooKeeperClient = connect(hosts, chroot, session_timeout_s, wake, broke, auth=auth, tls=tls)
        _, slash, above = hosts.partition("/")
        budget = SessionBudget(session_bytes, self.worker_id, slash + above + chroot)
        document = WorkerDocument({}, weight, socket.gethostname(), self._pid, budget.room)
        machine = WorkerMachine(session_timeout_s, drain_s, budget=budget)
        self._member = Member(self.worker_id, document, machine, monotonic_s)
        changed, lock = lambda: self.on_change and self.on_change(), self._runtime.lock()
        self._rounds = Rounds(self._client, self._member, changed, lock)
        self._failure: Exception | None = None

    # --- for any thread, without waiting

    def owned(self) -> Mapping[SlotKey, Ownership]:
        """Return the slots that may be claimed from now.

        Returns:
            (topic, slot) → ownership; empty while the connection is broken and after the watchdog has struck.

        Guarantee: Any thread; takes no lock and asks no server. At most one process of the cluster has a slot in it at
            any time, unless it was paused between this call and its use; against that stands the epoch.
        """
        self._check_process()
        return self._rounds.owned()

    def still_owner(self, ownership: Ownership) -> bool:
        """Tell whether no other worker can own the slot yet: also while it is drained, or the connection just broke."""
        self._check_process()
        return self._rounds.still_owner(ownership)

    def revoking(self) -> frozenset[SlotKey]:
        """Return the slots to be drained: no new claims; `drained` once their last handler has ended."""
        self._check_process()
        return self._rounds.revoking()

    def awaited(self, topic: str) -> frozenset[int]:
        """Return the slots of a topic that are assigned to this worker, as far as it knows, and that it has not got."""
        self._check_process()
        with self._rounds.lock:
            return frozenset(slot for place, slot in self._member.machine.awaited if place == topic)

    @property
    def leads(self) -> bool:
        """Whether this worker wrote, or would write, the assignment when it last looked."""
        return self._member.leads

    @property
    def ensemble(self) -> str | None:
        """Identity of the ensemble; None until it was read."""
        return self._member.ensemble

    @property
    def drain_timeout_s(self) -> float:
        """How long a revoked slot waits for its last handler, in seconds."""
        return self._member.machine.drain_timeout_s

    @property
    def troubles(self) -> tuple[str, ...]:
        """What keeps slots from being owned or served at the moment, in words; each was logged, too."""
        with self._rounds.lock:
            return self._member.problems.current()

    @property
    def connected(self) -> bool:
        """Whether there is a connection to ZooKeeper."""
        return self._client.session is not None

    def drained(self, topic: str, slot: int) -> None:
        """Say that no handler works on a revoked slot and no claim is under way; then it is handed over.

        Guarantee: Says nothing of a slot that is not being revoked.
        """
        self._check_process()
        with self._changing() as member:
            member.machine.drained((topic, slot))

    def start(self, timeout_s: float = 15.0) -> None:
        """Connect, register this worker and begin to take slots.

        Raises:
            CoordinationError: No answer in time, the login is refused, or the rights do not suffice.
        """
        self._check_process()
        self._thread.start()
        answered = self._first_round.wait(timeout_s)
        failure = self._failure
        if answered and failure is None:
            return
        reason = failure or self._client.refusal or "connections are made, and nothing comes back"
        self.stop(drain=False)
        if answered and failure is not None:
            raise failure
        raise CoordinationError(f"No ZooKeeper server has answered within {timeout_s:g} s ({reason})") from failure

    def drain_within(self, drain_s: float) -> None:
        """Set how long a revoked slot waits for its last handler, in seconds, unless `drain_timeout_s` was given."""
        if not self._drain_is_fixed:
            self._member.machine.drain_timeout_s = drain_s

    def leave(self, drain_s: float | None = None) -> None:
        """Begin to hand over all slots, each once `drained` says so, and return at once; `stop` waits for the end.

        Args:
            drain_s: How long, in seconds, a slot may wait for its last handler from now on; by default as before.

        Guarantee: May be called again; the first call's time counts.
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
        """Hand over all slots and leave; returns when it is done.

        Args:
            drain: Wait, up to the drain limit, for `drained` of every slot. Else all nodes go at once.

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
        """Register a topic's definition; the first registration rules.

        Returns:
            The registered definition, ours or the one that was there.

        Raises:
            CoordinationError: ZooKeeper does not answer, or the rights do not suffice.

        Guarantee: Safe to repeat.
        """
        self._check_process()
        nodes = {topic_path(name): definition_json.encode(), owners_path(name): b""}
        creates = (Create(path, data, ephemeral=False) for path, data in nodes.items())
        *made, node = self._ask(*creates, Get(topic_path(name)))
        if not isinstance(node, tuple):
            if refused := [reply for reply in (node, *made) if isinstance(reply, Refused)]:
                raise RefusedError(refused[0].text(self._member.machine.budget.chroot), topic=name)
            raise CoordinationError("ZooKeeper lost the topic's definition while it was registered", topic=name)
        with self._rounds.lock:
            self._member.definitions[name] = node[0]
        return node[0].decode()

    def consume(self, topic: str, slots: int) -> None:
        """Let this worker have slots of a registered topic.

        Args:
            topic: Its name.
            slots: Its number of slots as this worker knows it; with another than the registered one it gets none.

        Guarantee: Safe to repeat; does nothing once `stop` was called.
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
        """Return what the other live workers say of themselves; those whose nodes can't be read are left out.

        Raises:
            CoordinationError: ZooKeeper does not answer.
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

    # --- what binds it to Redis

    def belong_to(self, redis: str) -> None:
        """Say which Redis this worker serves; empty for unknown."""
        with self._changing() as member:
            member.document = replace(member.document, redis=redis)

    def expect_marks(self) -> None:
        """Take slots over a new connection only after `give_marks`; before `start`."""
        self._member.transaction_ids.gated = True

    @property
    def awaited_marks(self) -> ConnectionKey | None:
        """The connection that waits for `give_marks`, None if none does."""
        with self._rounds.lock:
            return self._member.transaction_ids.awaits

    def give_marks(self, connection: ConnectionKey, marks: Mapping[str, int]) -> None:
        """Say which epoch was the highest of each ensemble: a ZooKeeper that has counted less was restored.

        Args:
            connection: What `awaited_marks` said before the marks were read.
            marks: Identity of an ensemble → its highest epoch that was ever used.
        """
        with self._changing() as member:
            member.transaction_ids.give(connection, marks)

    def fenced(self, epoch: int, ensemble: str) -> None:
        """Say that Redis has a higher epoch of an ensemble: a ZooKeeper that has counted less was restored.

        Args:
            epoch: The epoch that Redis has.
            ensemble: Identity of the ensemble that gave it. This ZooKeeper may have a new identity since.
        """
        with self._changing() as member:
            member.transaction_ids.note(ensemble, epoch)

    def report(self, name: str, text: str) -> None:
        """Have something be one of `troubles` until it is reported with an empty text.

        Args:
            name: Says what is the same trouble.
            text: What is wrong.
        """
        with self._changing() as member:
            member.reported[name] = text

    def verified(self, marks: Mapping[str, int], timeout_s: float = 15.0) -> str:
        """Return the ensemble's identity once it is certain that it has counted as far as `marks` say.

        Raises:
            CoordinationError: ZooKeeper does not answer.
        """

        def counted() -> str | None:
            with self._changing() as member:
                for ensemble, epoch in marks.items():
                    member.transaction_ids.note(ensemble, epoch)
                identity = member.ensemble
                return identity if identity is not None and member.transaction_ids.reached(identity) else None

        return self._poll(counted, timeout_s)

    def _ask(self, *requests: Request) -> list[Reply]:
        """Carry out requests that may be repeated, until all have a reply."""

        def replies() -> list[Reply] | None:
            session = self._client.session
            replies = None if session is None else self._client.carry_out(session, requests)
            return None if replies is None or UNKNOWN in replies else replies

        return self._poll(replies)

    def _poll(self, look: Callable[[], T | None], timeout_s: float = 15.0) -> T:
        """Look until there is something, and return it."""
        deadline_s = monotonic_s() + timeout_s
        while monotonic_s() < deadline_s and not self._stopping.is_set():
            if (result := look()) is not None:
                return result
            self._runtime.sleep(0.05)
        raise CoordinationError(f"ZooKeeper has not answered within {timeout_s:g} s")

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
            except Exception as error:  # nothing may end this thread: it would stop the worker for good
                self._failure = error
                _LOG.warning("A round of coordination failed and will be repeated: %s", error)
                if isinstance(error, CoordinationError):
                    self._first_round.set()
            if self._wake.wait(self._rounds.pause_s()):
                self._stopping.wait(_GATHER_S)
                self._wake.clear()
        self._client.stop()
        self._rounds.end()

    @contextlib.contextmanager
    def _changing(self) -> Generator[Member]:
        """Let the caller tell the member something, and wake the thread for it."""
        with self._rounds.lock:
            yield self._member
        self._wake.set()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedClientError("a ZooKeeper session does not survive a fork; make the Coordinator after it")
