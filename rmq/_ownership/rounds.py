"""A member's rounds: carried out in ZooKeeper, and shown to other threads."""

from __future__ import annotations

import threading
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._ownership.requests import Create, Put, Release
from rmq.errors import CoordinationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rmq._ownership.member import Member
    from rmq._ownership.requests import Reply
    from rmq._ownership.view import OwnershipView
    from rmq._ownership.zookeeper import ZooKeeperClient

_LOG = reporter("rmq.coordination")


class Rounds:
    """What the coordinator's thread does again and again.

    Args:
        client: Carries requests out.
        member: Says what to request. Other threads use it, and its machine, under `lock`.
        view: Shows the state to other threads.
        changed: Called after every change of what may be claimed or is to be drained.
    """

    def __init__(
        self, client: ZooKeeperClient, member: Member, view: OwnershipView, changed: Callable[[], object]
    ) -> None:
        self.lock = threading.Lock()
        self._client = client
        self._member = member
        self._machine = member.machine
        self._view = view
        self._changed = changed
        self._finished_in: int | None = None  # the session in which the last round came to its end

    def pause_s(self) -> float:
        """Return how long to wait for a wake-up: a sixth of the session timeout, or until something is due before."""
        now_s = monotonic_s()
        with self.lock:
            due = [now_s + self._client.session_timeout_s / 6, self._machine.next_drain_limit_s() + 0.001]
        if self._machine.deadline_s > now_s:
            due.append(self._machine.deadline_s)
        return max(0.01, min(due) - now_s)

    def step(self) -> bool:
        """Run the watchdog, and a round if there is a connection; tell whether the round came to its end.

        Raises:
            CoordinationError: The login is refused, or the rights do not suffice.
        """
        breaks = self._view.breaks
        with self.lock:
            self._machine.session_timeout_s = self._client.session_timeout_s
            if not self._view.current:
                self._machine.suspended()
            if self._machine.expire(monotonic_s()):
                _LOG.warning("No answer from ZooKeeper for two thirds of the session timeout: all slots count as lost")
        self._publish(breaks)
        session = self._client.session
        if session is None:
            refused = self._client.refused
            self._client.renew()
            if refused:
                raise CoordinationError("ZooKeeper has refused the login; check `auth`")
            return False
        if self._finished_in != session:  # ZooKeeper may have been set up anew, or the chroot be gone with all below
            self._client.ensure_chroot()
        self._finished_in = session if self._round(session, breaks) else None
        return self._finished_in is not None

    def end(self) -> None:
        """Give everything up: the session has ended."""
        with self.lock:
            self._machine.contacted(-1, -inf)  # no session: nothing is ours any more
        self._publish(self._view.breaks)

    def _round(self, session: int, breaks: int) -> bool:
        steps = self._member.round(session, breaks)
        replies: Sequence[Reply] | None = None
        while True:
            with self.lock:
                try:
                    requests = next(steps) if replies is None else steps.send(replies)
                except StopIteration as end:
                    finished = bool(end.value)
                    break
            self._publish(breaks)
            # reads alone do not pass through the leader: they are no proof that ZooKeeper knew the session
            writes = any(isinstance(request, Create | Put | Release) for request in requests)
            replies = self._client.carry_out(session, requests, partial(self._heard, session) if writes else None)
        self._publish(breaks)
        for text in self._member.troubles.news():
            _LOG.warning("%s", text)
        return finished

    def _heard(self, session: int, sent_s: float) -> None:
        """Note that ZooKeeper knew the session when a window of requests was sent."""
        with self.lock:
            self._machine.contacted(session, sent_s)
        self._view.deadline_s = self._machine.deadline_s

    def _publish(self, breaks: int) -> None:
        with self.lock:
            changed = self._view.publish(self._machine, self._member.ensemble or "", breaks)
        if changed:
            try:
                self._changed()
            except Exception:
                _LOG.exception("on_change failed; the slots are looked after all the same")
