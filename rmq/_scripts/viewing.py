"""Builds the calls that only look, beside those in `calls`, and those of the workers' registry."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rmq.calls import Argument, Call, dead_message
from rmq.envelope import unwrap
from rmq.findings import (
    PLACES,
    AuditLine,
    Failure,
    FoundMessage,
    PeekedMessage,
    Place,
    Whereabouts,
    WorkerInfo,
    meaning_of,
)
from rmq.keys import WORKER_INFOS_KEY, WORKERS_KEY, slot_keys
from rmq.topics import Topic

MOST_BODY_BYTES = 1_024
"""So much of a body a search hands over."""

MOST_WORKERS = 1_000


def find(topic: Topic, slot: int, content: bytes) -> Call[Whereabouts]:
    """Build the reading of where a content is."""
    keys = slot_keys(topic.name, slot)

    def parse(reply: list[Any]) -> Whereabouts:
        now_ms = int(reply[0])
        scores = [int(found[0]) if found else None for found in reply[1:5]]
        body, error, reason, dead_body = (found[0] if found else None for found in reply[5:9])
        body = unwrap(body)[0]

        def peeked(place: Place, score: int | None) -> PeekedMessage | None:
            if score is None:
                return None
            return PeekedMessage(
                topic.name, slot, content, body, place, score, *meaning_of(topic, place, score), now_ms
            )

        dead = None
        if scores[3] is not None:
            dead = dead_message(topic.name, slot, content, b"%d" % scores[3], reason, dead_body)
        return Whereabouts(
            topic.name,
            slot,
            content,
            now_ms,
            peeked("store", scores[0]),
            peeked("prepare", scores[1]),
            peeked("retry", scores[2]),
            dead,
            _failure(error),
        )

    names = (
        keys.store, keys.prepare, keys.retry, keys.dead, keys.body, keys.error, keys.reason, keys.dead_body,
    )  # fmt: skip
    return Call("find", names, [content], parse, True, topic.name, slot)


SearchReply = tuple[tuple[str, ...], list[FoundMessage]]
"""The next cursors, one a place, and what was found."""


def search(topic: Topic, slot: int, pattern: bytes, count: int, cursors: Sequence[str]) -> Call[SearchReply]:
    """Build the next step of a search in one slot. `cursors`: one for each of `PLACES`, empty to leave it out."""
    keys = slot_keys(topic.name, slot)

    def parse(reply: list[Any]) -> SearchReply:
        now_ms, nexts, flat = reply
        rows = zip(*(flat[column::6] for column in range(6)), strict=True)
        return tuple(each.decode() for each in nexts), [_found(topic, slot, int(now_ms), *row) for row in rows]

    names = (keys.store, keys.prepare, keys.retry, keys.dead, keys.body, keys.dead_body, keys.reason)
    args: list[Argument] = [pattern, count, MOST_BODY_BYTES, *cursors]
    return Call("search", names, args, parse, True, topic.name, slot)


def dead_reasons(topic: Topic, slot: int, sample: int) -> Call[tuple[int, Counter[str]]]:
    """Build counting a slot's dead by type of error: how many there are, and the counts of the sample."""
    keys = slot_keys(topic.name, slot)

    def parse(reply: list[bytes]) -> tuple[int, Counter[str]]:
        pairs = zip(reply[1::2], reply[2::2], strict=True)
        return int(reply[0]), Counter({kind.decode(errors="backslashreplace"): int(number) for kind, number in pairs})

    return Call("dead_reasons", (keys.dead, keys.reason), [sample], parse, True, topic.name, slot)


def audit_lines(topic: Topic, slot: int, limit: int) -> Call[list[AuditLine]]:
    """Build the reading of a slot's last lines of the audit, the newest first."""

    def parse(reply: list[Any]) -> list[AuditLine]:
        return [_audit_line(topic.name, slot, entry_id.decode(), flat) for entry_id, flat in reply]

    key = slot_keys(topic.name, slot).audit
    return Call("stream_range", (key,), ["-", "+", limit, "down"], parse, True, topic.name, slot)


def worker_beat(name: str, info: str, forget_ms: int) -> Call[None]:
    """Build a worker's sign of life; an empty `info`: it has left."""
    args: list[Argument] = [name, info, forget_ms, MOST_WORKERS]
    return Call("worker_beat", (WORKERS_KEY, WORKER_INFOS_KEY), args, _nothing, True, WORKERS_KEY, 0)


def workers() -> Call[list[WorkerInfo]]:
    """Build the reading of the workers, by name."""

    def parse(reply: list[bytes]) -> list[WorkerInfo]:
        rows = zip(reply[1::3], reply[2::3], reply[3::3], strict=True)
        found = [WorkerInfo.from_json(info, name.decode(), int(seen), int(reply[0])) for name, seen, info in rows]
        return sorted((each for each in found if each is not None), key=lambda worker: worker.name)

    return Call("workers", (WORKERS_KEY, WORKER_INFOS_KEY), [MOST_WORKERS], parse, True, WORKERS_KEY, 0)


def _found(
    topic: Topic, slot: int, now_ms: int, place: bytes, content: bytes, score: bytes, size: bytes, body: bytes,
    reason: bytes | None,
) -> FoundMessage:  # fmt: skip
    where, value = PLACES[int(place) - 1], int(score)
    begin = None if int(size) < 0 else unwrap(body)[0]
    length = int(size) - len(body) + len(begin or b"")
    due_ms, left = (value, None) if where == "dead" else meaning_of(topic, where, value)
    record: dict[str, Any] = json.loads(reason.decode(errors="replace")) if reason else {}
    return FoundMessage(
        topic.name, slot, content, where, value, due_ms, left, record.get("type", ""), record.get("message", ""),
        begin, max(0, length), now_ms,
    )  # fmt: skip


def _failure(error: bytes | None) -> Failure | None:
    if error is None:
        return None
    record: dict[str, Any] = json.loads(error.decode(errors="replace"))
    return Failure(record["type"], record["message"], int(record["first_ms"]), int(record["last_ms"]))


def _audit_line(topic: str, slot: int, entry_id: str, flat: list[bytes]) -> AuditLine:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    actor, action, detail, outcome = (
        fields[name].decode(errors="backslashreplace") for name in (b"actor", b"action", b"detail", b"outcome")
    )
    content, time_ms = fields[b"content"] or None, int(entry_id.partition("-")[0])
    return AuditLine(topic, slot, entry_id, time_ms, actor, action, content, detail, outcome)


def _nothing(reply: object) -> None:
    del reply
