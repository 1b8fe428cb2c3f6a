"""A worker of the release before, whose claims bear whole seconds: its scripts as they were, with includes in place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.core import Ack, Call, Nack, claiming, retries_left_after_claim
from tests.support.slots import READ_FAKE_CLOCK, SlotUnderTest, with_hints

FOLDER = Path(__file__).parent / "old_scripts"


@dataclass(frozen=True)
class OldClaim:
    """What an old claim brought."""

    tokens: list[Ack]
    swept: int
    next_due_ms: int


class OldWorker:
    """Calls the scripts of the release before on a slot under test, at the time of its fake clock."""

    def __init__(self, slot: SlotUnderTest, lease_s: int | None = None) -> None:
        self._slot = slot
        self._lease_s = lease_s or slot.topic.lease_s
        texts = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.lua")}
        self._scripts = {name: text.replace("-- @include read_clock", READ_FAKE_CLOCK) for name, text in texts.items()}

    def claim(self, limit: int = 1_000, acks: list[Ack] | None = None) -> OldClaim:
        """Claim as it did: with its lease in seconds, and without what has come since."""
        args: list[Any] = [0, "", self._lease_s, self._slot.topic.max_retries, "high", limit, 0, 256, 10**12, 10**6]
        args += [*claiming.nack_args([]), *claiming.ack_args(acks or []), 0]
        now_ms, due_ms, _, swept, _, items, _, _ = self._eval(
            "claim", claiming.claim(self._slot.topic, 0, 0).keys, args
        )
        second, most = int(now_ms) // 1000, self._slot.topic.max_retries
        lefts = [retries_left_after_claim(int(score), most) for score in items[1::2]]
        tokens = [(content, second * 1000 + left) for content, left in zip(items[::2], lefts, strict=True)]
        return OldClaim(tokens, int(swept), int(due_ms))

    def ack(self, *acks: Ack) -> list[bytes]:
        """Ack; return what was stale."""
        call = claiming.ack(self._slot.topic, 0, acks)
        return self._eval("ack", call.keys, call.args)

    def nack(self, *nacks: Nack) -> list[bytes]:
        """Nack; return what was stale."""
        call = with_hints(claiming.nack(self._slot.topic, 0, nacks))
        return self._eval("nack", call.keys, call.args)

    def extend(self, *claims: Ack) -> list[Ack]:
        """Renew; return the new tokens of those that were still ours."""
        call: Call[Any] = claiming.extend(self._slot.topic, 0, claims)
        now_ms, flags = self._eval("extend", call.keys, [*call.args[:2], *call.args[3:]])
        second = int(now_ms) // 1000
        return [(c, second * 1000 + score % 1000) for (c, score), flag in zip(claims, flags, strict=True) if flag == 49]

    def _eval(self, name: str, keys: tuple[str, ...], args: Any) -> Any:
        return self._slot.client.eval(self._scripts[name], len(keys), *keys, *args)
