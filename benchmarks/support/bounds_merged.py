"""The scripts that fold at their bounds: topics that collect, with values of 8 KiB to 1 MiB and up to 99,000 items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.support.bounds_cases import AGAIN, MARK, REFUSAL, SETTLE, P, R, chunk, nacks, part_call
from benchmarks.support.bounds_place import FAILURE, FAR, Case, Make, Place, of, on, run, then
from rmq import Collect, Fixed, Merge, TopicType
from rmq.spark.calls import How, refuse_contents
from rmq.spark.marks import send_once
from tests.support.core import (
    MAX_UNIQUE_ITEMS,
    PIGGYBACKED_NACKS,
    Call,
    ClaimPart,
    EncodedMessage,
    Outcomes,
    Record,
    batch_size,
    claims,
    control,
    dead,
    framed,
    new_record,
    write_record,
)
from tests.support.one_slot import claim_slot, settle_slot

MAX_BATCH, NACK_BATCH, SWEEP_LIMIT = claims.MAX_BATCH, claims.NACK_BATCH, claims.SWEEP_LIMIT
FOLDED = 100
"""Most messages that a slot is filled with: more than a call may fold, of any shape."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the messages of a topic have collected.

    Attributes:
        what: In words.
        collect: The topic's reducer.
        items: Items of each value.
        item_bytes: Bytes of each item, with the 4 of its length.
        bound_ms: How much a call may cost.
        number: Most messages in a place.
    """

    what: str
    collect: Collect
    items: int
    item_bytes: int
    bound_ms: float
    number: int = FOLDED

    def value(self, prefix: str = "a", items: int | None = None) -> bytes:
        """Return frames of items that no other prefix has."""
        width = self.item_bytes - 4 - len(prefix)
        return framed(f"{prefix}{index:0{width}}".encode() for index in range(self.items if items is None else items))

    def record(self, prefix: str = "a") -> bytes:
        """Return a value as it is stored."""
        return write_record(Record(self.items, 1, 2, self.items, self.kind, self.value(prefix)))

    @property
    def kind(self) -> str:
        """The letter of its records."""
        return "U" if self.collect.unique else "C"


MOST_ITEMS, MOST_BYTES = 99_000, 1_048_576
SHAPES = (
    Shape("8 KiB in 100 items", Collect(), 100, 80, 5.0),
    Shape("1,000 items of 8 bytes", Collect(unique=True), 1_000, 12, 5.0),
    Shape("64 KiB in 1,000 items", Collect(), 1_000, 65, 5.0),
    Shape("64 KiB in 1,000 items, each once", Collect(unique=True), 1_000, 65, 5.0),
    Shape("1 MiB", Collect(max_bytes=MOST_BYTES), 1_000, 1_048, 50.0, 24),
    Shape("99,000 items", Collect(MOST_ITEMS, MOST_BYTES), MOST_ITEMS, 10, 50.0, 24),
    Shape("the most items, each once", Collect(MAX_UNIQUE_ITEMS, MOST_BYTES, unique=True), MAX_UNIQUE_ITEMS, 12, 50.0),
    Shape("1 MiB, each once", Collect(MAX_UNIQUE_ITEMS, MOST_BYTES, unique=True), MAX_UNIQUE_ITEMS, 209, 50.0, 24),
)  # fmt: skip

Fill = Callable[[Place, Shape], Any]


def _names(shape: Shape, number: int = FOLDED) -> list[bytes]:
    return [f"m{index:019}".encode() for index in range(min(number, shape.number))]


def _put(place: Place, key: str, names: Sequence[bytes], record: bytes) -> None:
    for name in names:
        place.client.hset(key, name, record)


def _fresh(place: Place, shape: Shape, names: Sequence[bytes], score: int | None = None) -> list[bytes]:
    """Put messages into the backlog."""
    place.zset(place.keys.store, names, place.now_ms - 1_000 if score is None else score, 0)
    _put(place, place.keys.body, names, shape.record("f"))
    return list(names)


def _held(
    place: Place, shape: Shape, names: Sequence[bytes], left: int = 5, age_ms: int = 0
) -> list[tuple[bytes, int]]:
    """Put claims into prepare; return contents and claim scores."""
    score = (place.now_ms - age_ms) * 1000 + left
    place.zset(place.keys.prepare, names, score, 0)
    _put(place, place.keys.held, names, shape.record("h"))
    return [(name, score) for name in names]


def _waiting(place: Place, shape: Shape, names: Sequence[bytes], in_s: int) -> None:
    """Put retries."""
    place.zset(place.keys.retry, names, (place.now_ms // 1000 + in_s) * 1000 + 3, 0)
    _put(place, place.keys.held, names, shape.record("h"))
    place.failures(names)


def _dead(place: Place, shape: Shape, names: Sequence[bytes]) -> None:
    place.zset(place.keys.dead, names, place.now_ms - 1_000_000)
    place.client.hset(place.keys.reason, mapping=dict.fromkeys(names, FAILURE))
    _put(place, place.keys.dead_body, names, shape.record("d"))


# --- sending


def _sends(shape: Shape, names: Sequence[bytes], items: int) -> list[EncodedMessage]:
    return [EncodedMessage(0, name, 5_000, new_record(shape.kind, shape.value("s", items), items)) for name in names]


def _one_each(place: Place, shape: Shape) -> list[EncodedMessage]:
    names = _names(shape, batch_size(place.topic))
    _fresh(place, replace(shape, items=shape.items - 1), names, FAR)
    return _sends(shape, names, 1)


def _to_half(place: Place, shape: Shape) -> list[EncodedMessage]:
    names = _names(shape, 1)
    _fresh(place, replace(shape, items=shape.items // 2), names, FAR)
    return _sends(shape, names, shape.items // 2)


def _to_one(place: Place, shape: Shape) -> list[EncodedMessage]:
    number = batch_size(place.topic)
    names = _names(shape, 1)
    _fresh(place, replace(shape, items=max(1, shape.items - number)), names, FAR)
    each = [new_record(shape.kind, framed([f"s{i:0{shape.item_bytes - 5}}".encode()]), 1) for i in range(number)]
    return [EncodedMessage(0, names[0], 5_000, record) for record in each]


# --- what a query of Spark has read


def _read(place: Place, shape: Shape) -> list[bytes]:
    """Let a query read a chunk; return its contents."""
    _fresh(place, shape, _names(shape, MAX_BATCH))
    return run(place.client, chunk()(place, None)).contents


def _read_and_fresh(place: Place, shape: Shape) -> None:
    _fresh(place, shape, _read(place, shape), FAR)


def _read_and_dead(place: Place, shape: Shape) -> None:
    _dead(place, shape, _read(place, shape))


def _refused(place: Place, shape: Shape, delay_ms: int | None) -> list[bytes]:
    """Let a query read a chunk and refuse all of it; return its contents."""
    names, how = _read(place, shape), How(delay_ms, "ValueError", "bad")
    run(place.client, refuse_contents(place.topic, 0, REFUSAL[0], how, names))
    return names


def _refused_and_fresh(place: Place, shape: Shape) -> None:
    _fresh(place, shape, _refused(place, shape, 5_000), FAR)


def _refused_and_dead(place: Place, shape: Shape) -> None:
    _dead(place, shape, _refused(place, shape, None))


# --- claiming, settling, steering


def _due(place: Place, shape: Shape) -> None:
    _fresh(place, shape, _names(shape, MAX_BATCH))


def _due_and_waiting(place: Place, shape: Shape) -> None:
    _waiting(place, shape, _fresh(place, shape, _names(shape)), 60)


def _expired(place: Place, shape: Shape) -> None:
    _held(place, shape, _fresh(place, shape, _names(shape, SWEEP_LIMIT), FAR), 5, 10**8)


def _dying(place: Place, shape: Shape) -> None:
    names = _names(shape, SWEEP_LIMIT)
    _held(place, shape, names, 0, 10**8)
    _dead(place, shape, names)


def _retries(place: Place, shape: Shape) -> None:
    _waiting(place, shape, _fresh(place, shape, _names(shape, SWEEP_LIMIT), FAR), -60)


def _outlived(place: Place, shape: Shape) -> None:
    names = _fresh(place, shape, _names(shape, SWEEP_LIMIT), 1_000_000)
    place.zset(place.keys.born, names, place.now_ms - 10**6, 0)
    _dead(place, shape, names)


def _everything(place: Place, shape: Shape) -> Outcomes:
    names = _names(shape)
    part = len(names) // 4
    parts = [names[first : first + part] for first in range(0, len(names), part)]
    nacked = _held(place, shape, parts[0][:PIGGYBACKED_NACKS])
    _held(place, shape, parts[1], 5, 10**8)
    _waiting(place, shape, parts[2], -60)
    for each in parts[:3]:
        _fresh(place, shape, each, FAR)
    _fresh(place, shape, parts[3])
    return Outcomes(nacks=nacks(nacked, "release", 5))


_SLOTS = 16


def _slots(place: Place, shape: Shape) -> None:
    names = _names(shape, 6)
    for slot in range(_SLOTS):
        place.go_to(slot)
        _held(place, shape, names[:3], 5, 10**8)
        _fresh(place, shape, names[:3], FAR)
        _fresh(place, shape, names[3:])


def _claim_slots(place: Place, _: Any) -> Call[Any]:
    return claims.queue_claims(place.topic)([ClaimPart(slot, 10) for slot in range(_SLOTS)])


def _to(verb: str, *, at_once: bool = False) -> Fill:
    """Return what lets claims be nacked beside fresh copies."""

    def fill(place: Place, shape: Shape) -> Outcomes:
        held = _held(place, shape, _fresh(place, shape, _names(shape, NACK_BATCH), FAR))
        return Outcomes(nacks=nacks(held, verb, place.now_ms if at_once else 0))

    return fill


def _bury(place: Place, shape: Shape) -> Outcomes:
    names = _names(shape, NACK_BATCH)
    held = _held(place, shape, names)
    _dead(place, shape, names)
    return Outcomes(nacks=nacks(held, "bury", 0))


def _acks(place: Place, shape: Shape) -> Outcomes:
    return Outcomes(_held(place, shape, _names(shape, MAX_BATCH)))


def _dead_and_fresh(place: Place, shape: Shape) -> list[bytes]:
    names = _names(shape, NACK_BATCH)
    _dead(place, shape, names)
    return _fresh(place, shape, names, FAR)


def _waiting_and_fresh(place: Place, shape: Shape) -> list[bytes]:
    names = _names(shape, claims.CONTROL_BATCH)
    _waiting(place, shape, names, 60)
    return _fresh(place, shape, names, FAR)


def _redrive(place: Place, names: list[bytes]) -> Call[Any]:
    return dead.redrive(place.topic, 0, ("after", 5_000), overwrite=True, contents=names, actor="me")


def merged(script: str, what: str, fill: Fill, make: Make, kind: TopicType = R, **settings: Any) -> list[Case]:
    """Return a case of each shape."""

    def shaped(shape: Shape) -> Case:
        merge = Merge(shape.collect, window=Fixed("5s")) if kind is R else Merge(shape.collect)
        settings_, title = {"merge": merge, **settings}, f"{what}, {shape.what}"
        return Case(script, title, lambda place: fill(place, shape), make, kind, 0, False, shape.bound_ms, settings_)

    return [shaped(shape) for shape in SHAPES]


CLAIM, SETTLED = on(claim_slot, MAX_BATCH), then(settle_slot)
ONE_EACH = "one item to each of nearly full ones"
OUTLIVED = "messages that outlived their time to live and die again"
BESIDE = "what waits beside fresh copies"
TTL = {"ttl": "1s", "ties": "any"}

MERGED = [
    *merged("send_merged", ONE_EACH, _one_each, part_call),
    *merged("send_merged", "as many items as it holds to a half full one", _to_half, part_call),
    *merged("send_merged", "many to a nearly full one", _to_one, part_call),
    *merged("send_merged", f"{ONE_EACH}, a chunk of Spark", _one_each, of(send_once, MARK)),
    *merged("spark_read", "a chunk", _due, chunk()),
    *merged("spark_read", "a replay", _read, chunk(AGAIN)),
    *merged("spark_read", "a replay that puts half back beside fresh copies", _read_and_fresh, chunk(AGAIN, 0)),
    *merged("spark_settle", "an ack", _read, SETTLE["ack"]),
    *merged("spark_read", "a replay that buries all again", _read_and_dead, chunk(AGAIN), max_retries=0),
    *merged("spark_settle", "an ack of what was refused beside fresh copies", _refused_and_fresh, SETTLE["ack"]),
    *merged("spark_settle", "an ack that buries what was refused again", _refused_and_dead, SETTLE["ack"]),
    *merged("claim", "due", _due, CLAIM),
    *merged("claim", "due, which waited for a retry, too", _due_and_waiting, CLAIM),
    *merged("claim", "expired claims that fold back", _expired, CLAIM),
    *merged("claim", "expired claims that die again", _dying, CLAIM),
    *merged("claim", "retries that are due beside fresh copies", _retries, CLAIM),
    *merged("claim", OUTLIVED, _outlived, CLAIM, P, **TTL),
    *merged("claim", "everything at once", _everything, then(claim_slot, MAX_BATCH)),
    *merged("claim", "slots in which claims have expired", _slots, _claim_slots, slots=64),
    *merged("settle", "to release beside fresh copies", _to("release", at_once=True), SETTLED),
    *merged("settle", "to retry beside fresh copies", _to("retry"), SETTLED),
    *merged("settle", "to bury again", _bury, SETTLED),
    *merged("settle", "1,000 acks", _acks, SETTLED),
    *merged("redrive", "into fresh copies", _dead_and_fresh, _redrive),
    *merged(
        "reschedule",
        "what waits beside fresh copies",
        _waiting_and_fresh,
        of(control.reschedule, ("after", 5_000), "me"),
    ),
    *merged("promote", BESIDE, _waiting_and_fresh, of(control.promote, "me")),
]
