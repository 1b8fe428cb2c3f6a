"""Calls of the scripts that read messages, figures, audit lines and workers without changing them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, cast

from rmq._admin.calls.dead import dead_message
from rmq._admin.figures import TOTALS, SlotStats, read_totals
from rmq._admin.messages import (
    SECTIONS,
    AuditLine,
    FoundMessage,
    PeekedMessage,
    Place,
    Whereabouts,
    meaning_of,
    priority_of,
    read_failure,
    told,
)
from rmq._broker.binding import BoundScript, order_of
from rmq._broker.keys import WORKERS_KEY, slot_keys
from rmq._io.reports import PassedOver
from rmq._model.display import shown
from rmq._model.records import HEAD_BYTES, before_value
from rmq._model.schema import MAX_DOCUMENT_BYTES
from rmq._model.scores import ages_for, score_of
from rmq._model.topics import Topic
from rmq._model.workers import WorkerInfo
from rmq._registry.shared import MOST_WORKERS, REPORT_KEYS
from rmq._transport.call import Call, T, is_one
from rmq.errors import UnreadableDocumentError

_passed_over = PassedOver(logging.getLogger("rmq.workers"))

_FIND, _SEARCH, _PEEK, _STATS = BoundScript("find"), BoundScript("search"), BoundScript("peek"), BoundScript("stats")
_RANGE, _WORKERS = BoundScript("stream_range"), BoundScript("workers")

MOST_BODY_BYTES = 1_024
"""Maximum bytes of a body that a search returns."""

MOST_REASONS = 500
"""Maximum number of dead messages of a slot in a sample."""


def find(topic: Topic, slot: int, content: bytes) -> Call[Whereabouts]:
    """Return a call that finds the sections of a slot that a content is in."""

    def parse(reply: list[Any]) -> Whereabouts:
        now_ms = int(reply[0])
        scores = [score_of(found[0]) if found else None for found in reply[1:5]]
        body, error, reason, dead_body, *rest = (found[0] if found else None for found in reply[5:])
        held = rest[0] if rest else body

        def peeked(place: Place, score: int | None, stored: bytes | None) -> PeekedMessage | None:
            return None if score is None else _peeked(topic, slot, place, now_ms, content, score, stored)

        dead = None
        if scores[3] is not None:
            dead = dead_message(topic, slot, content, b"%d" % scores[3], reason, dead_body)
        alive = (peeked("store", scores[0], body), peeked("prepare", scores[1], held), peeked("retry", scores[2], held))
        failure = None if error is None else read_failure(error)[0]
        return Whereabouts(topic.name, slot, content, now_ms, *alive, dead, failure)

    return _FIND.call(topic, slot, parse, content=content)


SearchReply = tuple[tuple[str, ...], list[FoundMessage]]
"""The next cursors, one for each section, and the messages found."""


def search(topic: Topic, slot: int, pattern: bytes, count: int, cursors: Sequence[str]) -> Call[SearchReply]:
    """Return the next step of a search in one slot. `cursors` has one for each of `SECTIONS`, empty to skip it."""

    def parse(reply: list[Any]) -> SearchReply:
        now_ms, nexts, flat = reply
        found: list[FoundMessage] = []
        for number, content, score, size, body, reason in zip(*(flat[column::6] for column in range(6)), strict=True):
            place, value = SECTIONS[int(number) - 1], score_of(score)
            begin, length, sends = _beginning(topic, int(size), body)
            meaning = (value, None) if place == "dead" else meaning_of(topic, place, value)
            why, _ = read_failure(reason)
            rest = (why.type, why.message, begin, length, int(now_ms), priority_of(topic, place, value))
            found.append(FoundMessage(topic.name, slot, content, place, value, *meaning, *rest, **sends))
        return tuple(each.decode() for each in nexts), found

    args: dict[str, Any] = {f"{section}_cursor": cursor for section, cursor in zip(SECTIONS, cursors, strict=True)}
    return _SEARCH.call(topic, slot, parse, pattern=pattern, count=count, most_body=MOST_BODY_BYTES, **args)


def _beginning(topic: Topic, size: int, read: bytes) -> tuple[bytes | None, int, dict[str, Any]]:
    """Return the beginning of a body, the length of the body, and the figures about its sends.

    Args:
        topic: The definition.
        size: Number of stored bytes, -1 for none.
        read: The first bytes; empty if the page has reached its limit of bytes.
    """
    if topic.merge is not None and size > 0 and not read:
        return b"", max(0, size - HEAD_BYTES - before_value(topic.merge.kind)), {"merged": 0}
    begin, sends = told(topic, None if size < 0 else read)
    if sends.get("item_count"):
        return None, size - HEAD_BYTES - before_value("J" if sends.get("wanted") else "C"), sends
    return begin, 0 if begin is None else max(0, size - len(read) + len(begin)), sends


def audit_lines(topic: Topic, slot: int, limit: int) -> Call[list[AuditLine]]:
    """Return a call that reads the last audit lines of a slot, the newest first."""

    def parse(reply: list[Any]) -> list[AuditLine]:
        return [_audit_line(topic.name, slot, entry_id.decode(), flat) for entry_id, flat in reply]

    keys = {"store": slot_keys(topic.name, slot).audit}
    return _RANGE.call(topic, slot, parse, keys=keys, first="-", last="+", limit=limit, order="down")


def _audit_line(topic: str, slot: int, entry_id: str, flat: list[bytes]) -> AuditLine:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    actor, action, detail, outcome = (
        fields.get(name, b"").decode(errors="backslashreplace") for name in (b"actor", b"action", b"detail", b"outcome")
    )
    content, time_ms = fields.get(b"content") or None, int(entry_id.partition("-")[0])
    return AuditLine(topic, slot, entry_id, time_ms, actor, action, content, detail, outcome)


def peek(topic: Topic, slot: int, place: Place, start: int, limit: int) -> Call[tuple[list[PeekedMessage], bool]]:
    """Return a call that reads a page of `store`, `prepare` or `retry`.

    Its result has the messages, and whether more did not fit, since bodies can be large.
    """
    keys = slot_keys(topic.name, slot)
    named = {"zset": getattr(keys, place), "body": keys.body if topic.merge is None or place == "store" else keys.held}
    order = order_of(topic) if place == "store" else "low"

    def parse(reply: list[Any]) -> tuple[list[PeekedMessage], bool]:
        now_ms, page, bodies, more = reply
        rows = zip(page[::2], map(score_of, page[1::2]), bodies or repeat(None), strict=False)
        return [_peeked(topic, slot, place, int(now_ms), *row) for row in rows], is_one(more)

    return _PEEK.call(topic, slot, parse, keys=named, order=order, start=start, limit=limit)


def _peeked(
    topic: Topic, slot: int, place: Place, now_ms: int, content: bytes, score: int, stored: bytes | None
) -> PeekedMessage:
    body, sends = told(topic, stored)
    meaning, priority = meaning_of(topic, place, score), priority_of(topic, place, score)
    return PeekedMessage(topic.name, slot, content, body, place, score, *meaning, now_ms, priority, **sends)


def stats(topic: Topic, slot: int) -> Call[SlotStats]:
    """Return a call that reads a slot's sizes and totals."""

    def parse(reply: list[list[Any]]) -> SlotStats:
        [figures] = reply
        now_ms, backlog, due_now, in_flight, waiting, dead, lowest, next_due_ms, epoch = map(_whole, figures[:9])
        oldest = None
        if backlog:
            oldest = lowest if topic.type.timed and lowest > topic.max_retries else now_ms
        sizes, totals = (backlog, due_now, in_flight, waiting, dead), read_totals(TOTALS, figures[10])
        paused, sent = is_one(figures[9]), [ages.sent_ms(score_of(score)) for score in figures[11]]
        sent_ms = min((time_ms for time_ms in sent if time_ms is not None), default=None)
        return SlotStats(topic.name, slot, now_ms, *sizes, oldest, next_due_ms, epoch, paused, totals, sent_ms)

    keys, ages = slot_keys(topic.name, slot), ages_for(topic.max_priority)
    names = (keys.store, keys.prepare, keys.retry, keys.dead, keys.meta)
    kinds = (order_of(topic), topic.lease_ms, ages.scale, *TOTALS)
    return _STATS.call_on(topic.name, parse, names, slot=slot, kinds=kinds)


def joined(calls: Sequence[Call[T]], per_slot: int = 0) -> Call[list[T]]:
    """Return one call in place of several calls of a script over slots; its result is that of each slot.

    Args:
        calls: The calls, of one slot each, which one script may access.
        per_slot: Number of arguments, the first ones, that the script takes for each slot.
    """
    keys = tuple(chain.from_iterable(call.keys for call in calls))
    args = [*chain.from_iterable(call.args[:per_slot] for call in calls), *calls[0].args[per_slot:]]

    def parse(reply: Sequence[Any]) -> list[T]:
        return [call.parse([answer]) for call, answer in zip(calls, reply, strict=True)]

    return cast("Call[list[T]]", calls[0]._replace(keys=keys, args=args, parse=parse))


joined_stats = partial(joined, per_slot=3)
"""Returns one call in place of several calls of `stats`, see `joined`."""


def _whole(text: bytes) -> int:
    return score_of(text) if text else 0


def workers(names: Sequence[bytes] = ()) -> Call[tuple[list[WorkerInfo], Sequence[bytes]]]:
    """Return a call that reads the reports of all workers, or of the named ones.

    Its result has the workers that were read, and the names of those still to be read, since reports can be long.
    """

    def parse(reply: list[Any]) -> tuple[list[WorkerInfo], Sequence[bytes]]:
        now_ms, flat, rest = reply
        rows = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        return list(_readable(rows, int(now_ms))), rest

    args: dict[str, Any] = {"limit": MOST_WORKERS, "longest": MAX_DOCUMENT_BYTES, "names": names}
    return _WORKERS.call_on(WORKERS_KEY, parse, REPORT_KEYS, **args)


def _readable(rows: Iterable[tuple[bytes, bytes, bytes]], now_ms: int) -> Iterator[WorkerInfo]:
    """Yield the workers whose reports can be read; others, of newer versions or invalid, are logged once."""
    for name, seen, info in rows:
        worker = shown(name)
        try:
            yield WorkerInfo.from_json(info, worker, int(float(seen)), now_ms)
        except UnreadableDocumentError as error:
            _passed_over.tell(worker, error)
        except (OverflowError, ValueError):
            _passed_over.tell(
                worker, UnreadableDocumentError(f"the report of worker {worker} has an invalid time: {shown(seen)}")
            )
