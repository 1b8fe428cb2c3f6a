"""Runs a member's rounds in ZooKeeper, and publishes a snapshot of its ownership for other threads.

The snapshot is replaced as a whole, so that other threads read it without a lock. They read its deadline first, which
is set after it: so none takes slots of a session that has ended together with the deadline of a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from types import MappingProxyType

from rmq._io.backend import Lock
from rmq._io.reports import reporter
from rmq._model.times import monotonic_s
from rmq._ownership.member import ConnectionKey, Member
from rmq._ownership.requests import UNKNOWN, Keeper, Reply
from rmq._ownership.values import Ownership, SlotKey

_LOG = reporter("rmq.coordination")
_NONE: Mapping[SlotKey, Ownership] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _View:
    """A snapshot of the state, with the number of times the connection had broken by then."""

    owned: Mapping[SlotKey, Ownership] = field(default_factory=lambda: _NONE)
    held: Mapping[SlotKey, int] = field(default_factory=dict[SlotKey, int])
    revoking: frozenset[SlotKey] = frozenset()
    breaks: int = 0
    ensemble: str = ""
    revision: int = -1


class Rounds:
    """The rounds of the coordinator's thread.

    Other threads use the member and its machine under `lock`. `changed` is called after every change of the slots that
    may be claimed from or must be drained, and when slots wait for the marks of a new connection.
    """

    def __init__(self, client: Keeper, member: Member, changed: Callable[[], object], lock: Lock) -> None:
        self.lock = lock
        self._client = client
        self._member = member
        self._machine = member.machine
        self._changed = changed
        self._finished_in: int | None = None  # the session in which the last round was completed
        self._view = _View()
        self._awaits: ConnectionKey | None = None  # the connection whose marks were requested
        self._breaks = 0  # number of times the connection has broken
        self._ends = 0  # number of times a session was found to have ended
        self._deadline_s = -inf

    # --- for any thread

    def owned(self) -> Mapping[SlotKey, Ownership]:
        """Return the slots from which this worker may claim now."""
        deadline_s, view = self._deadline_s, self._view
        return view.owned if view.breaks == self._breaks and monotonic_s() < deadline_s else _NONE

    def still_owner(self, ownership: Ownership) -> bool:
        """Return whether no other worker can own the slot yet."""
        deadline_s, view = self._deadline_s, self._view
        held = view.held.get((ownership.topic, ownership.slot)) == ownership.epoch
        return held and view.ensemble == ownership.ensemble and monotonic_s() < deadline_s

    def revoking(self) -> frozenset[SlotKey]:
        """Return the revoked slots, which are to be drained."""
        return self._view.revoking

    def connection_broke(self) -> None:
        """Invalidate the snapshot at once. Called only from kazoo's thread."""
        self._breaks += 1

    def session_ended(self) -> None:
        """Count all slots as lost at once, also those that are drained; the next round publishes it."""
        with self.lock:
            self._ends += 1
            self._machine.contacted(-1, -inf)  # a session that does not exist owns nothing
            self._deadline_s = self._machine.deadline_s

    # --- for the coordinator's thread

    def pause_s(self) -> float:
        """Return the time to wait for a wake-up: a sixth of the session timeout, or until an earlier deadline."""
        now_s = monotonic_s()
        with self.lock:
            due = [now_s + self._client.session_timeout_s / 6, self._machine.next_drain_limit_s() + 0.001]
        if self._machine.deadline_s > now_s:
            due.append(self._machine.deadline_s)
        return max(0.01, min(due) - now_s)

    def step(self) -> bool:
        """Check the watchdog, and run a round if there is a connection; return whether a round was completed.

        Raises:
            CoordinationError: The login is refused, or the chroot cannot be created.
        """
        breaks = self._breaks
        with self.lock:
            self._machine.session_timeout_s = self._client.session_timeout_s
            if self._view.breaks != breaks:
                self._machine.suspended()
            if self._machine.expire(monotonic_s()):
                text = "no reply from %s for two thirds of the session timeout; all slots count as lost"
                _LOG.warning(text, self._client.name)
        self._publish(breaks)
        session = self._client.session
        if session is None:
            self._client.renew()
            return False
        if self._finished_in != session:  # ZooKeeper may have been set up anew, or the chroot deleted
            self._client.ensure_chroot()
        self._finished_in = session if self._round(session, breaks) else None
        return self._finished_in is not None

    def end(self) -> None:
        """Drop all ownership: the session has ended."""
        self.session_ended()
        self._publish(self._breaks)

    def _round(self, session: int, breaks: int) -> bool:
        try:
            finished = self._carry_out(session, breaks)
        finally:  # even after an error: the next round needs the marks
            self._announce_missing_marks()
        for text in self._member.problems.news():
            _LOG.warning("%s", text)
        return finished

    def _carry_out(self, session: int, breaks: int) -> bool:
        steps = self._member.round(session, breaks)
        replies: Sequence[Reply] | None = None
        ends = self._ends
        while True:
            with self.lock:
                if replies and self._ends != ends:  # they are of before the end, which another thread heard of
                    replies = [UNKNOWN] * len(replies)
                try:
                    requests = next(steps) if replies is None else steps.send(replies)
                except StopIteration as end:
                    finished = bool(end.value)
                    break
            self._publish(breaks)
            replies = self._client.carry_out(session, requests, partial(self._note_contact, session))
        self._publish(breaks)
        return finished

    def _announce_missing_marks(self) -> None:
        """Call `changed`, once for each connection, if slots wait for its marks."""
        with self.lock:
            awaits, before = self._member.transaction_ids.awaits, self._awaits
            self._awaits = awaits
        if awaits not in (None, before):
            self._notify()

    def _note_contact(self, session: int, sent_s: float) -> None:
        """Record that the session was alive when a window of requests was sent."""
        with self.lock:
            self._machine.contacted(session, sent_s)
            if self._machine.revision == self._view.revision:  # the snapshot is not of an earlier session
                self._deadline_s = self._machine.deadline_s

    def _publish(self, breaks: int) -> None:
        """Publish a snapshot of the state, read when the connection had broken `breaks` times."""
        before, machine, ensemble = self._view, self._machine, self._member.ensemble or ""
        view = before
        with self.lock:
            if (machine.revision, breaks, ensemble) != (before.revision, before.breaks, before.ensemble):
                owned = {key: Ownership(*key, epoch, ensemble) for key, epoch in machine.owned(monotonic_s()).items()}
                view = _View(
                    MappingProxyType(owned), machine.epochs(), machine.revoking(), breaks, ensemble, machine.revision
                )
            self._view = view
            self._deadline_s = machine.deadline_s
        if (before.owned, before.revoking) != (view.owned, view.revoking):
            self._notify()

    def _notify(self) -> None:
        try:
            self._changed()
        except Exception:
            _LOG.exception("on_change raised an error, which is ignored")
