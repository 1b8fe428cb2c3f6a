"""The state machine of one worker's ownership: slots it owns, must acquire and must release. No I/O, clock or threads.

The caller reports facts (contact, nodes read, results of changes) with the time of a monotonic clock in seconds, and
asks for the plan. The states of a slot:

    assigned ──acquire──▶ owned ──no longer assigned──▶ revoking ──drained, or limit──▶ released
                            ▲                              │
                            └────────assigned again────────┘

- Nothing is owned until ZooKeeper has been read in this session, and after the connection broke until it has been read
  again.
- The watchdog: two thirds of the session timeout after the last request that ZooKeeper answered was *sent*, ownership
  counts as lost, regardless of what the client library reports (pitfall 37). The session expires a third of the timeout
  later at the earliest.
- Only a node whose `ephemeralOwner` is our session is ours (pitfalls 38, 42). Nodes that may be ours (a reply was lost,
  or the watchdog dropped them) are read in each round, and so are a few others, so that no error persists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from math import inf

from rmq._ownership.assignment import NO_LIMIT, SessionBudget
from rmq._ownership.values import SlotKey, Stat

WATCHDOG_SHARE = 2 / 3


@dataclass(slots=True)
class _Held:
    """A slot whose owner node belongs to this worker's session."""

    epoch: int
    revoked_s: float = inf  # when its revocation began
    drained: bool = False
    releasing: bool = False
    outrun: bool = False  # the slot itself has a newer epoch


@dataclass(frozen=True, slots=True)
class Plan:
    """The slots to acquire and to release next, in order."""

    acquire: tuple[SlotKey, ...] = ()
    release: tuple[SlotKey, ...] = ()


class WorkerMachine:
    """The state of one worker's ownership. Each round checks `sample` nodes that are not suspect, too."""

    def __init__(
        self, session_timeout_s: float, drain_timeout_s: float, sample: int = 16, budget: SessionBudget = NO_LIMIT
    ) -> None:
        self.session_timeout_s = session_timeout_s
        self.drain_timeout_s = drain_timeout_s
        self.budget = budget
        self.left_out = 0  # assigned slots that did not fit into the session's budget in the last plan
        self._sample = sample
        self.revision = 0  # incremented by every change of the results of `owned`, `epochs` or `revoking`
        self._session: int | None = None
        self._contact_s = -inf
        self._verified = False
        self._assigned: Set[SlotKey] = frozenset()
        self._present: set[SlotKey] = set()
        self._held: dict[SlotKey, _Held] = {}
        self._suspects: set[SlotKey] = set()
        self._cursor = 0

    @property
    def deadline_s(self) -> float:
        """Time at which ownership counts as lost unless ZooKeeper answers before."""
        return self._contact_s + self.session_timeout_s * WATCHDOG_SHARE

    def contacted(self, session: int, sent_s: float) -> None:
        """Record that ZooKeeper answered a request sent at `sent_s`: the session lasts at least a timeout from then."""
        self._enter(session)
        self._contact_s = max(self._contact_s, sent_s)

    def suspended(self) -> None:
        """Record that the connection broke: no slot is owned until ZooKeeper has been read again."""
        if self._verified:
            self._verified = False
            self.revision += 1

    def expire(self, now_s: float) -> bool:
        """Drop all ownership if the watchdog's deadline has passed; return True the first time."""
        if now_s < self.deadline_s or not (self._held or self._verified):
            return False
        self._suspects.update(self._held)  # the session may still live, and the nodes with it
        self._held.clear()
        self._verified = False
        self.revision += 1
        return True

    def _enter(self, session: int) -> None:
        if session == self._session:
            return
        self._session, self._contact_s, self._verified = session, -inf, False
        self._held.clear()
        self._suspects.clear()
        self.revision += 1

    def doubtful(self, assigned: Set[SlotKey], present: Set[SlotKey], *, own: bool = False) -> set[SlotKey]:
        """Return the owner nodes that must be read before `observed`.

        `present` are the slots that have one; with `own` only those whose node belongs to this session.
        """
        unsettled = {key for key, held in self._held.items() if held.releasing or held.outrun}
        look = {*(assigned - self._held.keys()), *self._suspects, *unsettled}
        look = look | (present - self._held.keys()) if own else look & present
        ordered = sorted(present)
        self._cursor %= len(ordered) or 1
        look.update((ordered + ordered)[self._cursor : self._cursor + self._sample])
        self._cursor += self._sample
        return look

    def observed(
        self,
        session: int,
        assigned: Set[SlotKey],
        present: Iterable[SlotKey],
        nodes: Mapping[SlotKey, Stat | None],
        now_s: float,
    ) -> None:
        """Update the state from nodes that were read in this session.

        `nodes` has the nodes that were read; None for one that no longer exists.
        """
        self._enter(session)
        self._present = {key for key in present if nodes.get(key, self) is not None}
        for key, held in list(self._held.items()):
            stat = nodes.get(key)
            foreign = stat is not None and (stat.session != session or stat.czxid != held.epoch)
            if foreign or key not in self._present:
                del self._held[key]
        for key, stat in nodes.items():
            if stat is not None and stat.session == session and key not in self._held:
                self._held[key] = _Held(stat.czxid)
        self._suspects.clear()
        self._assigned = assigned
        for key, held in self._held.items():
            held.releasing = False
            if key in assigned:
                held.revoked_s, held.drained = inf, False
            else:
                held.revoked_s = min(held.revoked_s, now_s)
        self._verified = True
        self.revision += 1

    def acquired(self, key: SlotKey, stat: Stat | None) -> None:
        """Record that the owner node was created for this worker (`stat`), or that it exists already (None)."""
        self._present.add(key)
        self._suspects.discard(key)
        if stat is not None and stat.session == self._session:
            self._held[key] = _Held(stat.czxid)
            self.revision += 1

    def released(self, key: SlotKey) -> None:
        self._present.discard(key)
        if self._held.pop(key, None):
            self.revision += 1

    def outrun(self, key: SlotKey, epoch: int) -> None:
        """Record that a slot refuses an epoch below this one: a node that is ours all the same is replaced."""
        held = self._held.get(key)
        if held and held.epoch < epoch and not held.outrun:
            held.outrun = True
            self.revision += 1

    def doubt(self) -> None:
        """Read all held nodes in the next round: the keeper has lost changes."""
        self._suspects.update(self._held)

    def drained(self, key: SlotKey) -> None:
        """Record that the last handler of a revoked slot has ended. Does nothing for a slot that is not revoked."""
        held = self._held.get(key)
        if held and held.revoked_s < inf:
            held.drained = True

    def leave(self, now_s: float, drain_timeout_s: float) -> None:
        """Start leaving: every slot, even one revoked before, gets this time for its last handler."""
        self.drain_timeout_s = drain_timeout_s
        for held in self._held.values():
            if held.revoked_s < inf:
                held.revoked_s = now_s

    def plan(self, now_s: float, *, may_acquire: bool = True) -> Plan:
        """Return the next changes. They count as started: their results are unknown until they are reported."""
        if not self._claims(now_s):
            return Plan()
        free = self._assigned - self._present - self._held.keys() if may_acquire else ()
        acquire = self.budget.fit(self._suspects | self._held.keys(), free)
        self.left_out = len(free) - len(acquire)
        kept = ((key, held) for key, held in self._held.items() if not held.releasing)
        due_s = now_s - self.drain_timeout_s
        release = tuple(sorted(key for key, held in kept if held.drained or held.outrun or held.revoked_s <= due_s))
        self._suspects.update(acquire)
        for key in release:
            self._held[key].releasing = True
        return Plan(acquire, release)

    def _claims(self, now_s: float) -> bool:
        return self._verified and now_s < self.deadline_s

    def owned(self, now_s: float) -> dict[SlotKey, int]:
        """Return slot → epoch of the slots from which this worker may claim."""
        if not self._claims(now_s):
            return {}
        kept = ((key, held) for key, held in self._held.items() if not (held.releasing or held.outrun))
        return {key: held.epoch for key, held in kept if held.revoked_s == inf}

    def epochs(self) -> dict[SlotKey, int]:
        """Return slot → epoch of all held slots, including revoked ones, even while the connection is broken."""
        return {key: held.epoch for key, held in self._held.items() if not held.releasing}

    def revoking(self) -> frozenset[SlotKey]:
        return frozenset(key for key, held in self._held.items() if held.revoked_s < inf and not held.releasing)

    @property
    def awaited(self) -> frozenset[SlotKey]:
        return frozenset(self._assigned - self._held.keys())

    @property
    def held(self) -> frozenset[SlotKey]:
        return frozenset(self._held)

    @property
    def suspects(self) -> frozenset[SlotKey]:
        return frozenset(self._suspects)

    def next_drain_limit_s(self) -> float:
        """Return the time at which the next revoked slot reaches its drain limit; infinite if none is revoked."""
        return min((held.revoked_s for held in self._held.values()), default=inf) + self.drain_timeout_s
