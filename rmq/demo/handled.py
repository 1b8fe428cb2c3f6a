"""What a worker of the demo writes down for each run of its handler."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Handled:
    """One run of a handler, as its worker wrote it down.

    Attributes:
        topic: Topic name.
        content: The content, as text.
        done: True if it ended without an error.
        started_s: When it began, on the clock `time.monotonic`, which all processes of a machine share.
        ended_s: When it ended.
        late_ms: How long after its due time it began, by Redis' time; `None` for a retry.
        early: True if it was claimed before its due time.
        tier: Tier of the customer, for customers' pictures.
        pence: What it came to, for takings.
        first_sent_ms: When the first of its sends arrived, for takings: a value that comes back has the same.
        attempt: Number of the delivery, 1 for the first.
        claim: The claim that it came with, as slot and stamp.
        price: The price in pence that was drawn; `None` where nothing was.
    """

    topic: str
    content: str
    done: bool
    started_s: float
    ended_s: float
    late_ms: int | None
    early: bool
    tier: str | None
    pence: int | None = None
    first_sent_ms: int | None = None
    attempt: int = 1
    claim: str = ""
    price: int | None = None

    @property
    def pictured(self) -> bool:
        """True if it drew a picture and ended well."""
        return self.done and self.price is not None

    def to_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(astuple(self))

    @classmethod
    def from_json(cls, line: str) -> Handled:
        """Rebuild it."""
        return cls(*json.loads(line))
