"""The coordinator: one background thread that keeps this worker's slots, and cheap answers for everybody else."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._model.workers import process_name
from rmq._ownership.capacity import SESSION_BYTES, SessionBudget
from rmq._ownership.documents import WORKERS, WorkerDocument, owners_path, topic_path, worker_path
from rmq._ownership.machine import WorkerMachine
from rmq._ownership.member import Member
from rmq._ownership.requests import UNKNOWN, Children, Create, Get, Put, Release, Reply, Request
from rmq._ownership.values import DigestAuth, Ownership, SaslAuth, SlotKey, Tls
from rmq._ownership.view import OwnershipView
from rmq.errors import CoordinationError, ForkedClientError, InvalidValueError, UnreadableDocumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rmq._ownership.counting import ConnectionKey
    from rmq._ownership.zookeeper import ZooKeeperClient

_LOG = reporter("rmq.coordination")
_NAME = re.compile(r"(?!\.+$)[A-Za-z0-9._:-]{1,128}")
_CHROOT = re.compile(r"(/(?!\.+(/|$))[A-Za-z0-9._-]+)+")
DRAIN_S = 30.0
"""How long running handlers may finish, unless the client or the coordinator says otherwise."""

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
            for the drain time that the client runs with, 30 s without one. Who leaves says by `leave` how long.
        session_bytes: What the paths of this session's nodes may take, from 1,000. ZooKeeper writes them all down when
            the session ends; what exceeds `jute.maxbuffer` takes the whole ensemble down. Raise it only after
            `jute.maxbuffer` on all servers, and stay a tenth below that.
        on_change: Called, from the background thread, after every change of `owned` or `revoking`; must not block.

    Raises:
        InvalidValueError: A value breaks its rule.

    Source: ZooKeeper Programmer's Guide 3.9 (sessions, ephemeral nodes, czxid).
    """

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
        self.worker_id = worker_id or process_name()
        named = bool(_NAME.fullmatch(self.worker_id))
        _check(named, f"worker_id {self.worker_id!r} must be 1 to 128 of A-Z a-z 0-9 . _ : -")
        _check(bool(_CHROOT.fullmatch(chroot)), f"chroot {chroot!r} must be like /rmq")
        _check(
            type(weight) is int and 1 <= weight <= 1000, f"weight is {weight!r}; it must be a whole number, 1 to 1000"
        )
        _check(session_timeout_s > 0, f"session_timeout_s is {session_timeout_s!r}; it must be above 0")
        _check(
            drain_timeout_s is None or drain_timeout_s >= 0,
            f"drain_timeout_s is {drain_timeout_s!r}; it must not be below 0",
        )
        _check(
            type(session_bytes) is int and session_bytes >= 1000,
            f"session_bytes is {session_bytes!r}; it must be a whole number from 1000",
        )
        self.on_change = on_change
        self._connect: Callable[[tuple[int, bytes] | None], ZooKeeperClient] = lambda identity: _client_class()(
            hosts,
            chroot,
            session_timeout_s,
            self._wake.set,
            self._view.connection_broke,
            auth=auth,
            tls=tls,
            identity=identity,
        )
        self._pid = os.getpid()
        self._view = OwnershipView()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._drain_at_end = True
        self._drain_given = drain_timeout_s is not None
        self._leave_within_s: float | None = None
        self._first_round = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmq-coordinator", daemon=True)
        _, slash, above = hosts.partition("/")
        self._budget = SessionBudget(session_bytes, self.worker_id, slash + above + chroot)
        self._machine = WorkerMachine(
            session_timeout_s, DRAIN_S if drain_timeout_s is None else drain_timeout_s, budget=self._budget
        )
        document = WorkerDocument({}, weight, socket.gethostname(), self._pid, self._budget.room)
        self._member = Member(self.worker_id, document, self._machine, monotonic_s)
        self._client: ZooKeeperClient = self._connect(None)
        self._identity: tuple[int, bytes] | None = None
        self._connected_s = monotonic_s()  # or when the client was last replaced
        self._chroot_seen: int | None = None  # the session in which the chroot was seen
        self._failure: Exception | None = None

    # --- for everybody, without waiting

    def owned(self) -> Mapping[SlotKey, Ownership]:
        """Return the slots that may be claimed from now.

        Returns:
            (topic, slot) → ownership; empty while the connection is broken and after the watchdog has struck.

        Guarantee: Any thread; takes no lock and asks no server. At most one process of the cluster has a slot in it at
            any time, unless it was paused between this call and its use; against that stands the epoch.
        """
        self._check_process()
        return self._view.owned()

    def still_owner(self, ownership: Ownership) -> bool:
        """Tell whether nobody else can own the slot yet: also while it is drained, or the connection just broke."""
        self._check_process()
        return self._view.still_owner(ownership)

    def revoking(self) -> frozenset[SlotKey]:
        """Return the slots to be drained: no new claims; `drained` once their last handler has ended."""
        self._check_process()
        return self._view.revoking()

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
        return self._machine.drain_timeout_s

    @property
    def troubles(self) -> tuple[str, ...]:
        """What keeps slots from being owned or served at the moment, in words; each was logged, too."""
        with self._lock:
            return self._member.troubles.current()

    @property
    def connected(self) -> bool:
        """Whether there is a connection to ZooKeeper."""
        return self._client.session is not None

    def drained(self, topic: str, slot: int) -> None:
        """Say that no handler works on a revoked slot and no claim is under way; then it is handed over.

        Guarantee: Says nothing of a slot that is not being revoked.
        """
        self._check_process()
        with self._lock:
            self._machine.drained((topic, slot))
        self._wake.set()

    # --- life

    def start(self, timeout_s: float = 15.0) -> None:
        """Connect, register this worker and begin to take slots.

        Raises:
            CoordinationError: No answer in time, the login is refused, or the rights do not suffice.
        """
        self._check_process()
        self._thread.start()
        if not self._first_round.wait(timeout_s):
            failure = self._failure
            reason = failure or self._client.refusal or "connections are made, and nothing comes back"
            self.stop(drain=False)
            raise CoordinationError(f"No ZooKeeper server has answered within {timeout_s:g} s ({reason})") from failure
        if self._failure is not None:
            failure = self._failure
            self.stop(drain=False)
            raise failure

    def drain_within(self, drain_s: float) -> None:
        """Let a revoked slot wait so long for its last handler, in seconds, unless `drain_timeout_s` was given."""
        if not self._drain_given:
            with self._lock:
                self._machine.drain_timeout_s = drain_s

    def leave(self, drain_s: float | None = None) -> None:
        """Begin to hand over all slots, each once `drained` says so, and return at once; `stop` waits for the end.

        Args:
            drain_s: How long, in seconds, a slot may wait for its last handler from now on; by default as before.

        Guarantee: May be called again; the first call's time counts.
        """
        self._check_process()
        if not self._stopping.is_set():
            self._leave_within_s = drain_s
        self._stopping.set()
        self._wake.set()

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

    # --- topics

    def register_topic(self, name: str, definition_json: str) -> str:
        """Register a topic's definition; the first registration rules.

        Returns:
            The registered definition, ours or the one that was there.

        Raises:
            CoordinationError: ZooKeeper does not answer, or the rights do not suffice.

        Guarantee: Safe to repeat.
        """
        self._check_process()
        create = Create(topic_path(name), definition_json.encode(), ephemeral=False)
        replies = self._ask((create, Create(owners_path(name), b"", ephemeral=False), Get(topic_path(name))))
        node = replies[2]
        if not isinstance(node, tuple):
            raise CoordinationError("ZooKeeper lost the topic's definition while it was registered", topic=name)
        with self._lock:
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
        with self._lock:
            if self._stopping.is_set():
                return
            document = self._member.document
            topics = {**document.topics, topic: slots}
            self._member.document = replace(document, topics=topics)
        needed = self._budget.workers_needed(topics)
        if needed > 1 and topics != document.topics:
            _LOG.warning(
                "The %d slots of %d topics take %d workers at least: the paths of one session's nodes may take"
                " session_bytes=%d",
                sum(topics.values()),
                len(topics),
                needed,
                self._budget.limit,
            )
        self._wake.set()

    def others(self) -> dict[str, WorkerDocument]:
        """Return what the other live workers say of themselves; those whose nodes can't be read are left out.

        Raises:
            CoordinationError: ZooKeeper does not answer.
        """
        (listed,) = self._ask([Children(WORKERS)])
        names = [name for name in cast("list[str] | None", listed) or () if name != self.worker_id]
        found: dict[str, WorkerDocument] = {}
        for name, node in zip(names, self._ask([Get(worker_path(name)) for name in names]), strict=True):
            with contextlib.suppress(UnreadableDocumentError):
                if isinstance(node, tuple):
                    found[name] = WorkerDocument.from_json(node[0])
        return found

    # --- what binds it to Redis

    def belong_to(self, redis: str) -> None:
        """Say which Redis this worker serves; empty for unknown."""
        with self._lock:
            if self._member.document.redis != redis:
                self._member.document = replace(self._member.document, redis=redis)
                self._wake.set()

    def expect_marks(self) -> None:
        """Take slots over a new connection only after `give_marks`; before `start`."""
        self._member.counting.gated = True

    @property
    def awaited_marks(self) -> ConnectionKey | None:
        """The connection that waits for `give_marks`, None if none does."""
        with self._lock:
            return self._member.counting.awaits

    def give_marks(self, connection: ConnectionKey, marks: Mapping[str, int]) -> None:
        """Say how far ensembles have counted, by their identities: a ZooKeeper that stands lower was restored.

        Args:
            connection: What `awaited_marks` said before the marks were read.
            marks: Identity of an ensemble → its highest epoch that was ever used.
        """
        with self._lock:
            self._member.counting.give(connection, marks)
        self._wake.set()

    def fenced(self, epoch: int) -> None:
        """Say that Redis has a higher epoch of this ensemble: a ZooKeeper that has not counted so far was restored."""
        with self._lock:
            self._member.counting.note(self._member.ensemble or "", epoch)
        self._wake.set()

    def verified(self, marks: Mapping[str, int], timeout_s: float = 15.0) -> str:
        """Return the ensemble's identity once it is certain that it has counted as far as `marks` say.

        Raises:
            CoordinationError: ZooKeeper does not answer.
        """
        with self._lock:
            for ensemble, epoch in marks.items():
                self._member.counting.note(ensemble, epoch)
        deadline_s = monotonic_s() + timeout_s
        while monotonic_s() < deadline_s:
            self._wake.set()
            with self._lock:
                identity = self._member.ensemble
                if identity is not None and self._member.counting.reached(identity):
                    return identity
            time.sleep(0.05)
        raise CoordinationError(f"ZooKeeper has not answered within {timeout_s:g} s")

    def _ask(self, requests: Sequence[Request], timeout_s: float = 15.0) -> list[Reply]:
        """Carry out requests that may be repeated, until all have a reply."""
        deadline_s = monotonic_s() + timeout_s
        while monotonic_s() < deadline_s and not self._stopping.is_set():
            client, session = self._client, self._client.session
            if session is not None:
                replies = client.carry_out(session, requests, lambda: None)
                if UNKNOWN not in replies:
                    return replies
            time.sleep(0.05)
        raise CoordinationError(f"ZooKeeper has not answered within {timeout_s:g} s")

    # --- the background thread

    def _run(self) -> None:
        self._client.start()
        stop_by_s: float | None = None
        while True:
            if self._stopping.is_set():
                stop_by_s = self._begin_to_leave() if stop_by_s is None else stop_by_s
                if not self._drain_at_end or not self._machine.held or monotonic_s() >= stop_by_s:
                    break
            try:
                self._step()
            except Exception as error:  # nothing may end this thread: it would stop the worker for good
                self._failure = error
                _LOG.warning("A round of coordination failed and will be repeated: %s", error)
                if isinstance(error, CoordinationError):
                    self._first_round.set()
            if self._wake.wait(self._pause_s()):
                self._stopping.wait(_GATHER_S)
                self._wake.clear()
        self._client.stop()
        with self._lock:
            self._machine.contacted(-1, float("-inf"))  # no session: nothing is ours any more
        self._publish(self._view.breaks)

    def _begin_to_leave(self) -> float:
        with self._lock:
            document = self._member.document
            self._member.document = replace(document, topics={})
            drain_s = self._machine.drain_timeout_s if self._leave_within_s is None else self._leave_within_s
            self._machine.leave(monotonic_s(), drain_s)
        return monotonic_s() + drain_s + 2.0

    def _pause_s(self) -> float:
        """Return how long to wait for a wake-up: a sixth of the session timeout, or until something is due before."""
        now_s = monotonic_s()
        due = [now_s + self._client.session_timeout_s / 6]
        with self._lock:
            limit_s = self._machine.next_drain_limit_s()
        if limit_s is not None:
            due.append(limit_s + 0.001)
        if self._machine.deadline_s > now_s:
            due.append(self._machine.deadline_s)
        return max(0.01, min(due) - now_s)

    def _step(self) -> None:
        """Run the watchdog, and a round if there is a connection."""
        breaks = self._view.breaks
        with self._lock:
            self._machine.session_timeout_s = self._client.session_timeout_s
            if not self._view.current:
                self._machine.suspended()
            if self._machine.expire(monotonic_s()):
                _LOG.warning("No answer from ZooKeeper for two thirds of the session timeout: all slots count as lost")
        self._publish(breaks)
        identity = self._client.identity
        if identity is None:
            self._reconnect()
            return
        self._connected_s = monotonic_s()
        self._identity = identity
        if self._chroot_seen != identity[0]:  # a new session may have met a ZooKeeper that was set up anew
            self._client.ensure_chroot()
            self._chroot_seen = identity[0]
        if self._round(identity[0], breaks):
            self._failure = None
            self._first_round.set()

    def _round(self, session: int, breaks: int) -> bool:
        steps = self._member.round(session, breaks)
        replies: Sequence[Reply] | None = None
        while True:
            with self._lock:
                try:
                    requests = next(steps) if replies is None else steps.send(replies)
                except StopIteration as end:
                    finished = bool(end.value)
                    break
            self._publish(breaks)
            replies = self._carry_out(session, requests)
        self._publish(breaks)
        if not finished:
            self._chroot_seen = None  # it may be gone, with all below
        for text in self._member.troubles.news():
            _LOG.warning("%s", text)
        if self._member.blocked_by is not None:
            _LOG.warning(
                "The worker node of %s belongs to session 0x%x; waiting until it ends. If it never does, two live"
                " workers have this id",
                self.worker_id,
                self._member.blocked_by,
            )
        return finished

    def _carry_out(self, session: int, requests: Sequence[Request]) -> list[Reply]:
        """Carry out a batch; every window of replies proves that ZooKeeper knew the session when it was sent."""
        sent_s = monotonic_s()

        def heard() -> None:
            nonlocal sent_s
            if any(
                isinstance(request, Create | Put | Release) for request in requests
            ):  # reads alone do not pass through the leader
                with self._lock:
                    self._machine.contacted(session, sent_s)
                self._view.deadline_s = self._machine.deadline_s
            sent_s = monotonic_s()

        return self._client.carry_out(session, requests, heard)

    def _reconnect(self) -> None:
        """Replace a client that cannot connect any more: a refused login, or servers that know only older states."""
        silent_s = monotonic_s() - self._connected_s
        if not self._client.refused and silent_s < 3 * self._client.session_timeout_s:
            return
        if self._client.refused and not self._first_round.is_set():
            self._failure = CoordinationError("ZooKeeper has refused the login; check `auth`")
            self._first_round.set()
        self._client.stop()
        self._client = self._connect(self._identity)  # the session, should it live, is taken up again
        self._connected_s = monotonic_s()
        self._client.start()

    def _publish(self, breaks: int) -> None:
        """Show other threads the state, and tell the runtime if it has changed."""
        with self._lock:
            changed = self._view.publish(self._machine, self._member.ensemble or "", breaks)
        if changed and self.on_change:
            try:
                self.on_change()
            except Exception:
                _LOG.exception("on_change failed; the slots are looked after all the same")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedClientError("a ZooKeeper session does not survive a fork; make the Coordinator after it")


def _check(good: bool, message: str) -> None:
    if not good:
        raise InvalidValueError(message)


def _client_class() -> type[ZooKeeperClient]:
    from rmq._ownership.zookeeper import ZooKeeperClient  # with kazoo: only who has a ZooKeeper pays for it

    return ZooKeeperClient
