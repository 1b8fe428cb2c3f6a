"""What the workers of the demo wrote down, and what can be seen in it. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Handled:
    """One run of a handler.

    Attributes:
        topic: Topic name.
        content: The content, as text.
        done: Whether it ended without an error.
        started_s: When it began, on the clock `time.monotonic`, which all processes of a machine share.
        ended_s: When it ended.
        late_ms: How long after its due time it began, by Redis' time; `None` for a retry.
        early: Whether it was claimed before its due time.
        tier: Tier of the customer, for customers' pictures.
    """

    topic: str
    content: str
    done: bool
    started_s: float
    ended_s: float
    late_ms: int | None
    early: bool
    tier: str | None

    def to_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(astuple(self))

    @classmethod
    def from_json(cls, line: str) -> Handled:
        """Rebuild it."""
        return cls(*json.loads(line))


def overlaps(records: Iterable[Handled]) -> int:
    """Return how often a handler began on a content while another one was still at it."""
    ends_s: dict[tuple[str, str], float] = {}
    found = 0
    for record in sorted(records, key=lambda each: each.started_s):
        key = (record.topic, record.content)
        found += record.started_s < ends_s.get(key, 0.0)
        ends_s[key] = max(record.ended_s, ends_s.get(key, 0.0))
    return found


def outdated(
    last_sent_s: Mapping[tuple[str, str], float], records: Iterable[Handled], dead: Collection[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the topic and content of messages that no handler has done since they were last sent.

    Args:
        last_sent_s: When the last send of each began, on the records' clock.
        records: What was handled.
        dead: Topic and content of what is dead, and so need not be done.
    """
    last_done_s: dict[tuple[str, str], float] = {}
    for record in records:
        if record.done:
            key = (record.topic, record.content)
            last_done_s[key] = max(record.started_s, last_done_s.get(key, 0.0))
    return [key for key, sent_s in last_sent_s.items() if key not in dead and last_done_s.get(key, 0.0) < sent_s]


@dataclass(frozen=True, slots=True)
class Spread:
    """How late deliveries began.

    Attributes:
        count: How many were measured.
        p50_ms: Half of them began within so many ms; 0 without any.
        p99_ms: 99 % of them did.
        mean_ms: On average; what a rush costs shows here rather than in p50.
    """

    count: int
    p50_ms: int
    p99_ms: int
    mean_ms: int


def spread(late_ms: Iterable[int | None]) -> Spread:
    """Return the spread of all that were measured."""
    known = sorted(each for each in late_ms if each is not None)
    if not known:
        return Spread(0, 0, 0, 0)
    p50_ms, p99_ms = (known[len(known) * percent // 100] for percent in (50, 99))
    return Spread(len(known), p50_ms, p99_ms, round(sum(known) / len(known)))
