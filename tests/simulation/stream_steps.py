"""Looks at what each script does to the deliveries of a stream's groups: as `steps` does for other topics."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tests.simulation.steps import Step
from tests.simulation.stream_clock import TIMES_KEY
from tests.support.core import OWN_MARK, own_score

WAITING = b"(waiting)"
"""Who holds what waits for a retry."""

NAMING = frozenset({"stream_extend"})
"""Scripts that name epoch, ensemble, group and consumer first."""

LOOK_AT_STREAMS = f"""
local slots = {{}}
for _, store in ipairs(ARGV) do
  local groups, said = {{}}, redis.call('HMGET', 'meta{{' .. store .. '}}', 'accepted', 'copied', 'trimmed', 'deleted')
  local function total(i) return tonumber(said[i] or 0) end
  local there, wrong = redis.call('XLEN', store), ''
  if total(1) + total(2) - total(3) - total(4) ~= there then
    wrong = store .. ': accepted ' .. total(1) .. ', copied ' .. total(2) .. ', trimmed ' .. total(3) .. ', deleted '
      .. total(4) .. ', there ' .. there
  end
  for _, about in ipairs(redis.call('XINFO', 'GROUPS', store)) do
    local group, rows = about[2], {{}}
    local times = '{TIMES_KEY}' .. redis.sha1hex(store .. ' ' .. group)
    for _, row in ipairs(redis.call('XPENDING', store, group, '-', '+', 1000)) do
      rows[#rows + 1] = {{ row[1], row[2], row[4], redis.call('HGET', times, row[1]) or '0' }}
    end
    local epoch = redis.call('HGET', 'group:' .. group .. '{{' .. store .. '}}', 'epoch') or '0'
    groups[#groups + 1] = {{ group, epoch, rows }}
  end
  slots[#slots + 1] = {{ wrong, groups }}
end
return slots
"""
"""Looks at streams after a script: whether the accounts are wrong, and of each group the epoch and what is pending."""


@dataclass(frozen=True, slots=True)
class Held:
    """A pending entry: who holds it, the number of the delivery, and when that began or was renewed."""

    consumer: bytes
    number: int
    since_ms: int

    @property
    def by(self) -> bytes:
        """The consumer, also of what a claim holds in a name of its own."""
        return self.consumer.partition(OWN_MARK)[0]

    @property
    def score(self) -> bytes | None:
        """What names all that a claim holds in a name of its own; `None` for what is in the consumer's."""
        stamp = self.consumer.partition(OWN_MARK)[2]
        return b"%d" % own_score(int(stamp)) if stamp else None

    def is_named(self, entry: bytes, named: Collection[bytes], left: Collection[bytes]) -> bool:
        """Return whether a call with these arguments means it, of which it has left what these consumers hold."""
        if self.by not in named:
            return False
        if entry in named and (self.score is not None or b"%d" % self.number in named):
            return True
        return self.score in named and self.consumer not in left


@dataclass(frozen=True, slots=True)
class GroupState:
    """What a group has on a slot: the epoch of its last owner, and its pending entries by their ids."""

    epoch: int = 0
    pending: Mapping[bytes, Held] = field(default_factory=dict[bytes, Held])

    @classmethod
    def of(cls, epoch: bytes, rows: Sequence[tuple[bytes, bytes, int, bytes]]) -> GroupState:
        """Return it as the script above tells it."""
        return cls(int(epoch), {row[0]: Held(row[1], row[2], int(row[3])) for row in rows})


class StreamSteps:
    """Follows the deliveries of all groups.

    Args:
        lease_ms: The lease of each stream topic.
    """

    def __init__(self, lease_ms: Mapping[bytes, int]) -> None:
        self._lease_ms = lease_ms
        self._known: dict[tuple[bytes, bytes], GroupState] = {}

    def forget(self) -> None:
        """Know nothing any more: the server has forgotten something."""
        self._known.clear()

    def follow(self, step: Step, store: bytes, group: bytes, after: GroupState) -> list[str]:
        """Take what a group has after a step; return what must not be."""
        before = self._known.get((store, group))
        self._known[store, group] = after
        if before is None or before.pending == after.pending:
            return []
        where = f"{store.decode()} of {group.decode()}"
        lease_ms = self._lease_ms[store.rpartition(b"_")[0]]
        named, left = set(step.arguments), {held.consumer for held in after.pending.values()}
        found = [
            f"stranger: {where}: {step.name} changed delivery {held.number} of {entry.decode()} and did not name it"
            for entry, held in before.pending.items()
            if after.pending.get(entry) != held and held.consumer != WAITING
            if step.now_ms - held.since_ms < lease_ms and not held.is_named(entry, named, left)
        ]
        caller = _caller(step, store)
        if caller is None or caller[0] != group:
            return found
        _, consumer, epoch = caller
        if epoch < before.epoch:
            found.append(f"fenced: {where}: {step.name} of epoch {epoch} after one of epoch {before.epoch}")
        new = [
            entry for entry, held in after.pending.items() if held.by == consumer and before.pending.get(entry) != held
        ]
        others = [
            entry
            for entry, held in after.pending.items()
            if held.by not in (consumer, WAITING) and step.now_ms - held.since_ms < lease_ms
        ]
        if epoch and step.name == "stream_claim" and new and others:
            found.append(f"beside: {where}: epoch {epoch} has {_names(new)} while an older one has {_names(others)}")
        return found


def _caller(step: Step, store: bytes) -> tuple[bytes, bytes, int] | None:
    """Return the group, the consumer and the epoch that touch a stream; `None` where a step names none."""
    if step.name in ("stream_claim", "stream_settle"):
        return step.arguments[0], step.arguments[1], step.epochs().get(store, 0)
    if step.name not in NAMING:
        return None
    return step.arguments[2], step.arguments[3], int(step.arguments[0])


def _names(entries: Sequence[bytes]) -> str:
    return ", ".join(entry.decode() for entry in entries)
