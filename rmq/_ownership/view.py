"""What other threads see of the ownership: replaced as a whole, read without a lock."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

from rmq._model.times import monotonic_s
from rmq._ownership.values import Ownership, SlotKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmq._ownership.machine import WorkerMachine

_NONE: Mapping[SlotKey, Ownership] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _View:
    """The state at one moment, and how often the connection had broken by then."""

    owned: Mapping[SlotKey, Ownership] = field(default_factory=lambda: _NONE)
    held: Mapping[SlotKey, int] = field(default_factory=dict[SlotKey, int])
    revoking: frozenset[SlotKey] = frozenset()
    breaks: int = 0
    ensemble: str = ""


class OwnershipView:
    """The last published state. One thread publishes, one reports breaks, any may read."""

    def __init__(self) -> None:
        self.deadline_s = -inf
        self.breaks = 0  # how often the connection has broken
        self._view = _View()
        self._published: tuple[int, int, str] | None = None

    @property
    def current(self) -> bool:
        """Whether the connection has not broken since the last publication."""
        return self._view.breaks == self.breaks

    def connection_broke(self) -> None:
        """Make the view invalid at once; called from the thread that notices, by no other."""
        self.breaks += 1

    def owned(self) -> Mapping[SlotKey, Ownership]:
        """Return the slots that may be claimed from now."""
        view = self._view
        return view.owned if view.breaks == self.breaks and monotonic_s() < self.deadline_s else _NONE

    def still_owner(self, ownership: Ownership) -> bool:
        """Tell whether nobody else can own the slot yet."""
        view = self._view
        held = view.held.get((ownership.topic, ownership.slot)) == ownership.epoch
        return held and view.ensemble == ownership.ensemble and monotonic_s() < self.deadline_s

    def revoking(self) -> frozenset[SlotKey]:
        """Return the slots to be drained."""
        return self._view.revoking

    def publish(self, machine: WorkerMachine, ensemble: str, breaks: int) -> bool:
        """Show the state of `machine`, which no other thread may change meanwhile; tell whether that changes anything.

        Args:
            machine: Its state.
            ensemble: Identity of the ensemble that counts its epochs.
            breaks: How often the connection had broken when the state was read.
        """
        self.deadline_s = machine.deadline_s
        if (machine.revision, breaks, ensemble) == self._published:
            return False
        self._published = machine.revision, breaks, ensemble
        owned = {key: Ownership(*key, epoch, ensemble) for key, epoch in machine.owned(monotonic_s()).items()}
        before = self._view
        self._view = _View(MappingProxyType(owned), machine.epochs(), machine.revoking(), breaks, ensemble)
        return (before.owned, before.revoking) != (self._view.owned, self._view.revoking)
