"""The scripts that fold at their bounds: topics that collect, with values of 8 KiB to 1 MiB and up to 99,000 items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.support.bounds_cases import DRIVER, FAILURE, FAR, Case, P, Place, R, part_call, run
from rmq import Collect, Fixed, Merge, TopicType
from rmq._broker import claims as claiming
from rmq._broker import control as steering
from rmq._broker import dead as dead_
from rmq._broker.claims import MAX_BATCH, NACK_BATCH, PIGGYBACKED_NACKS, SWEEP_LIMIT, ClaimPart, Nack, Outcomes
from rmq._broker.keys import slot_keys
from rmq._model.batches import EncodedMessage
from rmq._model.merging import MAX_UNIQUE_ITEMS
from rmq._model.records import Record, framed, new_record, write_record
from rmq._sending.batch_sender import batch_size
from rmq._transport.call import Call
from rmq.spark import calls as spark_calls
from rmq.spark.calls import Driver, Reading
from rmq.spark.marks import Mark, send_once
from rmq.spark.refusal_calls import How, refuse_contents
from tests.support.one_slot import claim_slot, settle_slot

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

MERGED: list[Case] = []

Fill = Callable[[Place, Shape], Call[Any]]


def merged(script: str, what: str, kind: TopicType = R, **settings: Any) -> Callable[[Fill], Fill]:
    """Note a case of each shape."""

    def note(fill: Fill) -> Fill:
        for shape in SHAPES:
            merge = Merge(shape.collect, window=Fixed("5s")) if kind is R else Merge(shape.collect)

            def build(place: Place, shape: Shape = shape) -> Call[Any]:
                return fill(place, shape)

            settings_ = {"merge": merge, **settings}
            MERGED.append(Case(script, f"{what}, {shape.what}", build, kind, settings_, 0, False, shape.bound_ms))
        return fill

    return note


def _names(shape: Shape, number: int = FOLDED) -> list[bytes]:
    return [f"m{index:019}".encode() for index in range(min(number, shape.number))]


def _put(place: Place, key: str, names: Sequence[bytes], record: bytes) -> None:
    for name in names:
        place.client.hset(key, name, record)


def _fresh(place: Place, shape: Shape, names: Sequence[bytes], score: int | None = None) -> None:
    """Put messages into the backlog."""
    place.zset(place.keys.store, names, place.now_ms - 1_000 if score is None else score, 0)
    _put(place, place.keys.body, names, shape.record("f"))


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


def _nacks(held: Sequence[tuple[bytes, int]], verb: str, number: int = 0) -> list[Nack]:
    return [Nack(name, score, verb, number, "ValueError", "no" * 200) for name, score in held[:NACK_BATCH]]


# --- sending


def _sends(shape: Shape, names: Sequence[bytes], items: int) -> list[EncodedMessage]:
    return [EncodedMessage(0, name, 5_000, new_record(shape.kind, shape.value("s", items), items)) for name in names]


@merged("send_merged", "one item to each of nearly full ones")
def _send(place: Place, shape: Shape) -> Call[Any]:
    names = _names(shape, batch_size(place.topic))
    short = Shape(shape.what, shape.collect, shape.items - 1, shape.item_bytes, 0)
    _fresh(place, short, names, FAR)
    return part_call(place, _sends(shape, names, 1))


@merged("send_merged", "as many items as it holds to a half full one")
def _send_much(place: Place, shape: Shape) -> Call[Any]:
    names = _names(shape, 1)
    half = Shape(shape.what, shape.collect, shape.items // 2, shape.item_bytes, 0)
    _fresh(place, half, names, FAR)
    return part_call(place, _sends(shape, names, shape.items // 2))


@merged("send_merged", "many to a nearly full one")
def _send_again(place: Place, shape: Shape) -> Call[Any]:
    number = batch_size(place.topic)
    rest = Shape(shape.what, shape.collect, max(1, shape.items - number), shape.item_bytes, 0)
    names = _names(shape, 1)
    _fresh(place, rest, names, FAR)
    each = [new_record(shape.kind, framed([f"s{i:0{shape.item_bytes - 5}}".encode()]), 1) for i in range(number)]
    return part_call(place, [EncodedMessage(0, names[0], 5_000, record) for record in each])


@merged("send_merged", "one item to each of nearly full ones, a chunk of Spark")
def _spark_send(place: Place, shape: Shape) -> Call[Any]:
    names = _names(shape, batch_size(place.topic))
    short = Shape(shape.what, shape.collect, shape.items - 1, shape.item_bytes, 0)
    _fresh(place, short, names, FAR)
    return send_once(place.topic, 0, _sends(shape, names, 1), Mark("q", 1, 0, 1_000, 0, "d"))


# --- Spark's reads


def _chunk(place: Place, driver: Driver = DRIVER, max_replays: int = 10) -> Call[Any]:
    reading = Reading(driver, 1, spark_calls.CHUNK, max_replays, True)
    return spark_calls.read(place.topic, reading, 0, 0, spark_calls.CHUNK)


def _read(place: Place, shape: Shape) -> list[bytes]:
    """Let a query read a chunk; return its contents."""
    _fresh(place, shape, _names(shape, MAX_BATCH))
    return run(place.client, _chunk(place)).contents


@merged("spark_read", "a chunk")
def _spark_read(place: Place, shape: Shape) -> Call[Any]:
    _fresh(place, shape, _names(shape, MAX_BATCH))
    return _chunk(place)


@merged("spark_read", "a replay")
def _spark_replay(place: Place, shape: Shape) -> Call[Any]:
    _read(place, shape)
    return _chunk(place, Driver("q", 2))


@merged("spark_read", "a replay that puts half back beside fresh copies")
def _spark_halved(place: Place, shape: Shape) -> Call[Any]:
    _fresh(place, shape, _read(place, shape), FAR)
    return _chunk(place, Driver("q", 2), 0)


@merged("spark_settle", "an ack")
def _spark_ack(place: Place, shape: Shape) -> Call[Any]:
    _read(place, shape)
    return spark_calls.settle(place.topic, 0, DRIVER, 1, 0, "ack")


@merged("spark_read", "a replay that buries all again", max_retries=0)
def _spark_dying(place: Place, shape: Shape) -> Call[Any]:
    _dead(place, shape, _read(place, shape))
    return _chunk(place, Driver("q", 2))


def _refused(place: Place, shape: Shape, delay_ms: int | None) -> list[bytes]:
    """Let a query read a chunk and refuse all of it; return its contents."""
    names, how = _read(place, shape), How(delay_ms, "ValueError", "bad")
    run(place.client, refuse_contents(place.topic, 0, spark_calls.Claim(DRIVER, 1, 0), how, names))
    return names


@merged("spark_settle", "an ack of what was refused beside fresh copies")
def _spark_refused(place: Place, shape: Shape) -> Call[Any]:
    _fresh(place, shape, _refused(place, shape, 5_000), FAR)
    return spark_calls.settle(place.topic, 0, DRIVER, 1, 0, "ack")


@merged("spark_settle", "an ack that buries what was refused again")
def _spark_buried(place: Place, shape: Shape) -> Call[Any]:
    _dead(place, shape, _refused(place, shape, None))
    return spark_calls.settle(place.topic, 0, DRIVER, 1, 0, "ack")


# --- claiming


@merged("claim", "due")
def _claim(place: Place, shape: Shape) -> Call[Any]:
    _fresh(place, shape, _names(shape, MAX_BATCH))
    return claim_slot(place.topic, 0, MAX_BATCH)


@merged("claim", "due, which waited for a retry, too")
def _claim_waiting(place: Place, shape: Shape) -> Call[Any]:
    names = _names(shape)
    _fresh(place, shape, names)
    _waiting(place, shape, names, 60)
    return claim_slot(place.topic, 0, MAX_BATCH)


@merged("claim", "expired claims that fold back")
def _sweep(place: Place, shape: Shape) -> Call[Any]:
    names = _names(shape, SWEEP_LIMIT)
    _held(place, shape, names, 5, 10**8)
    _fresh(place, shape, names, FAR)
    return claim_slot(place.topic, 0, MAX_BATCH)


@merged("claim", "expired claims that die again")
def _sweep_dying(place: Place, shape: Shape) -> Call[Any]:
    names = _names(shape, SWEEP_LIMIT)
    _held(place, shape, names, 0, 10**8)
    _dead(place, shape, names)
    return claim_slot(place.topic, 0, MAX_BATCH)


@merged("claim", "retries that are due beside fresh copies")
def _retries(place: Place, shape: Shape) -> Call[Any]:
    names = _names(shape, SWEEP_LIMIT)
    _waiting(place, shape, names, -60)
    _fresh(place, shape, names, FAR)
    return claim_slot(place.topic, 0, MAX_BATCH)


@merged("claim", "messages that outlived their time to live and die again", P, ttl="1s", ties="any")
def _expire(place: Place, shape: Shape) -> Call[Any]:
    names = _names(shape, SWEEP_LIMIT)
    _fresh(place, shape, names, 1_000_000)
    place.zset(place.keys.born, names, place.now_ms - 10**6, 0)
    _dead(place, shape, names)
    return claim_slot(place.topic, 0, MAX_BATCH)


@merged("claim", "everything at once")
def _everything(place: Place, shape: Shape) -> Call[Any]:
    names = _names(shape)
    part = len(names) // 4
    parts = [names[first : first + part] for first in range(0, len(names), part)]
    nacked = _held(place, shape, parts[0][:PIGGYBACKED_NACKS])
    _held(place, shape, parts[1], 5, 10**8)
    _waiting(place, shape, parts[2], -60)
    for each in parts[:3]:
        _fresh(place, shape, each, FAR)
    _fresh(place, shape, parts[3])
    return claim_slot(place.topic, 0, MAX_BATCH, Outcomes(nacks=_nacks(nacked, "release", 5)))


@merged("claim", "slots in which claims have expired", slots=64)
def _claim_slots(place: Place, shape: Shape) -> Call[Any]:
    names, slots = _names(shape, 6), 16
    for slot in range(slots):
        place.__dict__["keys"] = slot_keys(place.topic.name, slot)
        _held(place, shape, names[:3], 5, 10**8)
        _fresh(place, shape, names[:3], FAR)
        _fresh(place, shape, names[3:])
    return claiming.queue_claims(place.topic)([ClaimPart(slot, 10) for slot in range(slots)])


# --- settling


for _verb in ("release", "retry"):

    @merged("settle", f"to {_verb} beside fresh copies")
    def _nack(place: Place, shape: Shape, verb: str = _verb) -> Call[Any]:
        names = _names(shape, NACK_BATCH)
        held = _held(place, shape, names)
        _fresh(place, shape, names, FAR)
        return settle_slot(place.topic, 0, Outcomes(nacks=_nacks(held, verb, place.now_ms if verb == "release" else 0)))


@merged("settle", "to bury again")
def _bury(place: Place, shape: Shape) -> Call[Any]:
    names = _names(shape, NACK_BATCH)
    held = _held(place, shape, names)
    _dead(place, shape, names)
    return settle_slot(place.topic, 0, Outcomes(nacks=_nacks(held, "bury")))


@merged("settle", "1,000 acks")
def _ack(place: Place, shape: Shape) -> Call[Any]:
    return settle_slot(place.topic, 0, Outcomes(_held(place, shape, _names(shape, MAX_BATCH))))


# --- steering


@merged("redrive", "into fresh copies")
def _redrive(place: Place, shape: Shape) -> Call[Any]:
    names = _names(shape, NACK_BATCH)
    _dead(place, shape, names)
    _fresh(place, shape, names, FAR)
    return dead_.redrive(place.topic, 0, ("after", 5_000), overwrite=True, contents=names, actor="me")


@merged("reschedule", "what waits beside fresh copies")
def _reschedule(place: Place, shape: Shape) -> Call[Any]:
    names = _names(shape, claiming.CONTROL_BATCH)
    _waiting(place, shape, names, 60)
    _fresh(place, shape, names, FAR)
    return steering.reschedule(place.topic, 0, names, ("after", 5_000), "me")


@merged("promote", "what waits beside fresh copies")
def _promote(place: Place, shape: Shape) -> Call[Any]:
    names = _names(shape, claiming.CONTROL_BATCH)
    _waiting(place, shape, names, 60)
    _fresh(place, shape, names, FAR)
    return steering.promote(place.topic, 0, names, "me")
