"""The record that a demo worker keeps of each handler run."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Handled:
    """The record of one handler run.

    Attributes:
        topic: Topic name.
        content: The content as text.
        done: True if the handler ended without an error.
        started_s: Start time by `time.monotonic`, which all processes of a machine share.
        ended_s: End time by the same clock.
        late_ms: Time from due time to start, by Redis' clock; `None` for a retry.
        early: True if the message was claimed before its due time.
        tier: Tier of the customer, for customers' pictures.
        pence: Amount, for takings.
        first_sent_ms: Time of the first of its sends, for takings; the same for a redelivery.
        attempt: Number of the delivery, starting with 1.
        claim: Slot and stamp of its claim.
        price: The price drawn, in pence; `None` without a picture.
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
        """True if the handler drew a picture without an error."""
        return self.done and self.price is not None

    def to_json(self) -> str:
        """Encode the record as one line of JSON."""
        return json.dumps(astuple(self))

    @classmethod
    def from_json(cls, line: str) -> Handled:
        """Decode a record."""
        return cls(*json.loads(line))
