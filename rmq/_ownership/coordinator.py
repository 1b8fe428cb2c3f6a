"""The coordinator: one background thread that keeps this worker's slots, and cheap answers for everybody else."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from typing import TYPE_CHECKING
from uuid import uuid4

from rmq.coordination.documents import WorkerDocument, owners_path, topic_path
from rmq.coordination.machine import WorkerMachine
from rmq.coordination.requests import UNKNOWN, Create, Get, Put, Release, Reply, Request
from rmq.coordination.rounds import Member
from rmq.coordination.values import DigestAuth, Ownership, SaslAuth, SlotKey, Tls
from rmq.coordination.view import OwnershipView, monotonic_s
from rmq.coordination.zk import ZooKeeperClient
from rmq.errors import CoordinationError, ForkedClientError, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_LOG = logging.getLogger("rmq.coordination")
_NAME = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,128}")
_CHROOT = re.compile(r"(/(?!\.+(/|$))[A-Za-z0-9._-]+)+")
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
        drain_timeout_s: How long a revoked slot waits for its last handler before it is handed over all the same.
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
        drain_timeout_s: float = 30.0,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64]
        self.worker_id = worker_id or f"{host}-{os.getpid()}-{uuid4().hex[:8]}"
        named = bool(_NAME.fullmatch(self.worker_id))
        _check(named, f"worker_id {self.worker_id!r} must be 1 to 128 of A-Z a-z 0-9 . _ -")
        _check(bool(_CHROOT.fullmatch(chroot)), f"chroot {chroot!r} must be like /rmq")
        _check(
            type(weight) is int and 1 <= weight <= 1000, f"weight is {weight!r}; it must be a whole number, 1 to 1000"
        )
        _check(session_timeout_s > 0, f"session_timeout_s is {session_timeout_s!r}; it must be above 0")
        _check(drain_timeout_s >= 0, f"drain_timeout_s is {drain_timeout_s!r}; it must not be below 0")
        self.on_change = on_change
        self._connect: Callable[[tuple[int, bytes] | None], ZooKeeperClient] = lambda identity: ZooKeeperClient(
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
        self._first_round = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmq-coordinator", daemon=True)
        self._machine = WorkerMachine(session_timeout_s, drain_timeout_s)
        document = WorkerDocument({}, weight, host, self._pid)
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
            self.stop(drain=False)
            raise CoordinationError(f"No ZooKeeper server has answered within {timeout_s:g} s: {failure}") from failure
        if self._failure is not None:
            failure = self._failure
            self.stop(drain=False)
            raise failure

    def leave(self) -> None:
        """Begin to hand over all slots, each once `drained` says so, and return at once; `stop` waits for the end.

        Guarantee: May be called again.
        """
        self._check_process()
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
            self._member.document = WorkerDocument(
                {**document.topics, topic: slots}, document.weight, document.host, document.pid
            )
        self._wake.set()

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
            self._member.document = WorkerDocument({}, document.weight, document.host, document.pid)
        return monotonic_s() + self._machine.drain_timeout_s + 2.0

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
        steps = self._member.round(session)
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
