"""Looks at what each script does to the claims of a slot: what no handler notices, since the message comes again.

A claim belongs to who made it. Its score stands in prepare until a call names it, or until its lease is over. Only the
newest owner of a slot changes its claims, and it claims nothing beside the claims of an owner before. So a settlement
or a renewal by a stranger is seen at once, and not only where a message is lost by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from tests.support.core import default_scripts

OWNED = frozenset({"extend"})
"""Scripts of one slot that name their owner's epoch first."""

CLAIMS = frozenset({"claim", "stream_claim"})
"""Scripts that claim from one or several slots, and name the epoch of each."""

STREAM_WIDTH = len(default_scripts()["stream_claim"].keys.required)

SETTLES = {"settle": 4, "stream_settle": 6}
"""Scripts that settle in one slot or several, and how many of their arguments all slots have in common."""


@dataclass(frozen=True, slots=True)
class Step:
    """A script call that was carried out.

    Attributes:
        name: The script.
        now_ms: Redis' time.
        keys: Its keys.
        arguments: Its other arguments.
    """

    name: str
    now_ms: int
    keys: Sequence[bytes]
    arguments: Sequence[bytes]

    @classmethod
    def of(cls, command: Sequence[bytes], name: str, now_ms: int) -> Step:
        """Return the step of an EVALSHA."""
        end = 3 + int(command[2])
        return cls(name, now_ms, command[3:end], command[end:])

    def epochs(self) -> dict[bytes, int]:
        """Return for each slot, by its store's key, in the name of which epoch it is touched: the newest of several."""
        if self.name in OWNED:
            return {self.keys[0]: int(self.arguments[0])}
        if self.name in SETTLES:
            return self._settled_epochs(SETTLES[self.name])
        if self.name not in CLAIMS:
            return {}
        at = len(default_scripts()[self.name].args.required)
        width = STREAM_WIDTH if self.name == "stream_claim" else int(self.arguments[0])
        found: dict[bytes, int] = {}
        for store in self.keys[: len(self.keys) - width + 1 : width]:  # in a cluster one more key stands behind them
            found[store] = max(found.get(store, 0), int(self.arguments[at + 1]))
            at += 1 + int(self.arguments[at])
        return found

    def _settled_epochs(self, at: int) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        key = 0
        while at < len(self.arguments):
            values, keys, epoch = (int(each) for each in self.arguments[at : at + 3])
            found[self.keys[key]] = max(found.get(self.keys[key], 0), epoch)
            at, key = at + values + 1, key + keys
        return found


@dataclass(frozen=True, slots=True)
class SlotState:
    """What a slot holds: the epoch of its last owner, and the claim score of each content in prepare."""

    epoch: int = 0
    claims: Mapping[bytes, bytes] = field(default_factory=dict[bytes, bytes])


@dataclass(slots=True)
class Hold:
    """A time in which a content stood in prepare. All times are Redis', in ms.

    Attributes:
        from_ms: When it was claimed.
        lease_ms: When its lease ends, after the last renewal.
        to_ms: When it was taken from prepare; infinite while it is there.
    """

    from_ms: int
    lease_ms: int
    to_ms: float = inf

    @property
    def end_ms(self) -> float:
        """When it held nobody up any more: what is over its lease may be claimed."""
        return min(self.to_ms, self.lease_ms)

    @property
    def ended(self) -> bool:
        """Whether its lease ended it: nobody settled it, nor gave it back."""
        return self.to_ms > self.lease_ms


class Steps:
    """Follows the claims of all slots.

    Args:
        lease_ms: The lease of each topic.

    Attributes:
        holds: When which contents were claimed, by store and content.
    """

    def __init__(self, lease_ms: Mapping[bytes, int]) -> None:
        self._lease_ms = lease_ms
        self._known: dict[bytes, SlotState] = {}
        self._claimed_in: dict[tuple[bytes, bytes], int] = {}
        self.holds: dict[tuple[bytes, bytes], list[Hold]] = {}

    def forget(self) -> None:
        """Know nothing any more: the server has forgotten something."""
        for store, known in self._known.items():
            for content in known.claims:
                hold = self.holds[store, content][-1]
                hold.to_ms = hold.end_ms
        self._known.clear()
        self._claimed_in.clear()

    def follow(self, step: Step, store: bytes, after: SlotState) -> list[str]:
        """Take what a slot holds after a step; return what must not be."""
        before = self._known.get(store)
        self._known[store] = after
        self._hold(step, store, before, after.claims)
        if before is None or (before.claims == after.claims and before.epoch == after.epoch):
            return []
        epoch = step.epochs().get(store, 0)
        new = {content for content, score in after.claims.items() if before.claims.get(content) != score}
        found = self._foreign_worker(step, store, before, after)
        if (new or before.claims != after.claims) and store in step.epochs() and epoch < before.epoch:
            found.append(f"fenced: {_slot(store)}: {step.name} of epoch {epoch} after one of epoch {before.epoch}")
        if step.name in CLAIMS:
            found += self._beside(step, store, after, new, epoch)
            for content in new:
                self._claimed_in[store, content] = epoch
        for content in before.claims.keys() - after.claims.keys():
            self._claimed_in.pop((store, content), None)
        return found

    def _hold(self, step: Step, store: bytes, before: SlotState | None, after: Mapping[bytes, bytes]) -> None:
        """Note what was claimed, renewed and taken from prepare. What is there at first was claimed before."""
        claims = before.claims if before else {}
        for content in claims.keys() - after.keys():
            self.holds[store, content][-1].to_ms = step.now_ms
        for content, score in after.items():
            if claims.get(content) == score:
                continue
            holds, until_ms = self.holds.setdefault((store, content), []), self._until_ms(store, score)
            if content in claims:
                if step.name not in CLAIMS:  # a renewal
                    holds[-1].lease_ms = until_ms
                    continue
                holds[-1].to_ms = step.now_ms  # its lease was over
            holds.append(Hold(step.now_ms if before else _claimed_ms(score), until_ms))

    def _foreign_worker(self, step: Step, store: bytes, before: SlotState, after: SlotState) -> list[str]:
        """Find claims that were ended, renewed or replaced by a call that does not name them."""
        named = set(step.arguments)
        return [
            f"stranger: {_slot(store)}: {step.name} changed the claim {score.decode()} of {_text(content)} to"
            f" {after.claims.get(content, b'none').decode()} and did not name it"
            for content, score in before.claims.items()
            if after.claims.get(content) != score and score not in named and not self._is_over(step, store, score)
        ]

    def _beside(self, step: Step, store: bytes, after: SlotState, new: set[bytes], epoch: int) -> list[str]:
        """Find claims of an owner beside those of another, older one."""
        older = [
            content
            for content, score in after.claims.items()
            if new and content not in new
            if 0 < self._claimed_in.get((store, content), epoch) < epoch and not self._is_over(step, store, score)
        ]
        return [
            f"beside: {_slot(store)}: epoch {epoch} claims {_names(new)} while an older one has {_names(older)}"
            for _ in older[:1]
        ]

    def _is_over(self, step: Step, store: bytes, score: bytes) -> bool:
        return self._until_ms(store, score) < step.now_ms

    def _until_ms(self, store: bytes, score: bytes) -> int:
        return _claimed_ms(score) + self._lease_ms[store.rpartition(b"_")[0]]


def _claimed_ms(score: bytes) -> int:
    return int(float(score)) // 1000


def _slot(store: bytes) -> str:
    return store.decode()


def _names(contents: Sequence[bytes] | set[bytes]) -> str:
    return ", ".join(sorted(map(_text, contents)))


def _text(content: bytes) -> str:
    """Return a content in words; those of a delayed queue begin with bytes that are no text."""
    return content.decode(errors="backslashreplace")
