"""The scripts that fold at their bounds: topics that collect, with values of 8 KiB to 1 MiB and up to 99,000 items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.support.bounds_cases import AGAIN, CLAIM, MARK, REFUSE, SETTLE, P, R, chunk, nacks, part_call
from benchmarks.support.bounds_place import FAR, FILLED, Case, Make, Place, on, run
from rmq import Collect, Fixed, Merge, TopicType
from rmq.spark.calls import How
from rmq.spark.marks import send_once
from tests.support import core
from tests.support.core import ClaimPart, EncodedMessage, Outcomes, claims, control, dead
from tests.support.one_slot import claim_slot, settle_slot

MAX_BATCH, NACK_BATCH, SWEEP_LIMIT = claims.MAX_BATCH, claims.NACK_BATCH, claims.SWEEP_LIMIT
FOLDED = 100
"""Most messages that a slot is filled with: more than a call may fold, of any shape."""
SLOTS = 16


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

    def value(self, prefix: str, items: int) -> bytes:
        """Return frames of items that no other prefix has."""
        width = self.item_bytes - 4 - len(prefix)
        return core.framed(f"{prefix}{index:0{width}}".encode() for index in range(items))

    def record(self, prefix: str) -> bytes:
        """Return a value as it is stored."""
        value = self.value(prefix, self.items)
        return core.write_record(core.Record(self.items, 1, 2, self.items, self.kind, value))

    @property
    def kind(self) -> str:
        """The letter of its records."""
        return "U" if self.collect.unique else "C"


MOST_ITEMS, MOST_BYTES, MOST_UNIQUE = 99_000, 1_048_576, core.MAX_UNIQUE_ITEMS
SHAPES = (
    Shape("8 KiB in 100 items", Collect(), 100, 80, 5.0),
    Shape("1,000 items of 8 bytes", Collect(unique=True), 1_000, 12, 5.0),
    Shape("64 KiB in 1,000 items", Collect(), 1_000, 65, 5.0),
    Shape("64 KiB in 1,000 items, each once", Collect(unique=True), 1_000, 65, 5.0),
    Shape("1 MiB", Collect(max_bytes=MOST_BYTES), 1_000, 1_048, 50.0, 24),
    Shape("99,000 items", Collect(MOST_ITEMS, MOST_BYTES), MOST_ITEMS, 10, 50.0, 24),
    Shape("the most items, each once", Collect(MOST_UNIQUE, MOST_BYTES, unique=True), MOST_UNIQUE, 12, 50.0),
    Shape("1 MiB, each once", Collect(MOST_UNIQUE, MOST_BYTES, unique=True), MOST_UNIQUE, 209, 50.0, 24),
)


@dataclass(frozen=True, slots=True)
class Collected:
    """A slot that is filled with messages of a shape; each verb returns the contents, for what happens to them next."""

    place: Place
    shape: Shape

    def some(self, number: int = FOLDED) -> list[bytes]:
        """Return contents: as many, or as many as a place may have of this shape."""
        return [f"m{index:019}".encode() for index in range(min(number, self.shape.number))]

    def fresh(self, names: list[bytes], score: int | None = None) -> list[bytes]:
        """Put messages into the backlog, by default due ones."""
        return self._put("store", self.place.now_ms - 1_000 if score is None else score, "body", names, "f")

    def held(self, names: list[bytes], left: int = 5, age_ms: int = 0) -> list[tuple[bytes, int]]:
        """Put claims into prepare; return contents and claim scores."""
        score = (self.place.now_ms - age_ms) * 1000 + left
        return [(name, score) for name in self._put("prepare", score, "held", names, "h")]

    def waiting(self, names: list[bytes], in_s: int) -> list[bytes]:
        """Put retries."""
        score = (self.place.now_ms // 1000 + in_s) * 1000 + 3
        return self.place.failures(self._put("retry", score, "held", names, "h"))

    def dead(self, names: list[bytes]) -> list[bytes]:
        """Bury messages."""
        self.place.failures(names, self.place.keys.reason)
        return self._put("dead", self.place.now_ms - 1_000_000, "dead_body", names, "d")

    def read(self) -> list[bytes]:
        """Let a query of Spark read a chunk."""
        self.fresh(self.some(MAX_BATCH))
        return run(self.place.client, chunk()(self.place, None)).contents

    def refused(self, delay_ms: int | None) -> list[bytes]:
        """Let a query read a chunk and refuse all of it."""
        names = self.read()
        run(self.place.client, REFUSE(How(delay_ms, "ValueError", "bad"), FILLED)(self.place, names))
        return names

    def sends(self, names: list[bytes], there: int, items: int) -> list[EncodedMessage]:
        """Put messages with so many items into the backlog; return sends of as many items to each."""
        Collected(self.place, replace(self.shape, items=there)).fresh(names, FAR)
        record = core.new_record(self.shape.kind, self.shape.value("s", items), items)
        return [EncodedMessage(0, name, 5_000, record) for name in names]

    def sends_to_one(self) -> list[EncodedMessage]:
        """Return as many sends of an item each as a call has to one message that they fill."""
        number = core.batch_size(self.place.topic)
        [first] = self.sends(self.some(1), max(1, self.shape.items - number), 1)
        items = ([f"s{index:0{self.shape.item_bytes - 5}}".encode()] for index in range(number))
        return [first._replace(body=core.new_record(self.shape.kind, core.framed(each), 1)) for each in items]

    def nacks(self, verb: str, *, at_once: bool = False) -> Outcomes:
        """Let claims have fresh copies beside them; return their nacks."""
        held = self.held(self.fresh(self.some(NACK_BATCH), FAR))
        return Outcomes(nacks=nacks(held, verb, self.place.now_ms if at_once else 0))

    def everything(self) -> Outcomes:
        """Fill all places; return outcomes."""
        names = self.some()
        part = len(names) // 4
        parts = [names[first : first + part] for first in range(0, len(names), part)]
        nacked = self.held(parts[0][: core.PIGGYBACKED_NACKS])
        self.held(parts[1], 5, 10**8)
        self.waiting(parts[2], -60)
        self.fresh([name for each in parts[:3] for name in each], FAR)
        self.fresh(parts[3])
        return Outcomes(nacks=nacks(nacked, "release", 5))

    def slots(self) -> None:
        """Let claims have expired in several slots beside fresh copies and what is due."""
        names = self.some(6)
        for slot in range(SLOTS):
            self.place.go_to(slot)
            self.held(self.fresh(names[:3], FAR), 5, 10**8)
            self.fresh(names[3:])

    def _put(self, place: str, score: int, values: str, names: list[bytes], prefix: str) -> list[bytes]:
        keys, record = self.place.keys, self.shape.record(prefix)
        self.place.zset(getattr(keys, place), names, score, 0)
        for name in names:  # one by one: the values of all together may be longer than a command
            self.place.client.hset(getattr(keys, values), name, record)
        return names


def merged(
    script: str, what: str, fill: Callable[[Collected], Any], make: Make, kind: TopicType = R, **settings: Any
) -> list[Case]:
    """Return a case of each shape."""

    def shaped(shape: Shape) -> Case:
        merge = Merge(shape.collect, window=Fixed("5s")) if kind is R else Merge(shape.collect)
        settings_, title = {"merge": merge, **settings}, f"{what}, {shape.what}"
        filled = lambda place: fill(Collected(place, shape))  # noqa: E731
        return Case(script, title, filled, make, kind, 0, False, shape.bound_ms, settings_)

    return [shaped(shape) for shape in SHAPES]


def due(slot: Collected) -> list[bytes]:
    """Fill the backlog with as many due messages as a claim takes."""
    return slot.fresh(slot.some(MAX_BATCH))


def one_each(slot: Collected) -> list[EncodedMessage]:
    """Send an item to each of as many nearly full messages as a call has."""
    return slot.sends(slot.some(core.batch_size(slot.place.topic)), slot.shape.items - 1, 1)


def half(slot: Collected) -> list[EncodedMessage]:
    """Send as many items as it has to a half full message."""
    return slot.sends(slot.some(1), slot.shape.items // 2, slot.shape.items // 2)


def outlived(slot: Collected) -> list[bytes]:
    """Fill the backlog with messages that have outlived their time to live, beside dead ones."""
    names = slot.dead(slot.fresh(slot.some(SWEEP_LIMIT), 1_000_000))
    slot.place.zset(slot.place.keys.born, names, slot.place.now_ms - 10**6, 0)
    return names


def claim_slots(place: Place, _: Any) -> core.Call[Any]:
    """Claim from several slots."""
    return claims.queue_claims(place.topic)([ClaimPart(slot, 10) for slot in range(SLOTS)])


SETTLED = on(settle_slot, FILLED)
REDRIVE = on(dead.redrive, ("after", 5_000), overwrite=True, contents=FILLED, actor="me")
RESCHEDULE = on(control.reschedule, FILLED, ("after", 5_000), "me")
ONE_EACH, BESIDE = "one item to each of nearly full ones", "what waits beside fresh copies"
OUTLIVED = "messages that outlived their time to live and die again"

MERGED = [
    *merged("send_merged", ONE_EACH, one_each, part_call),
    *merged("send_merged", "as many items as it holds to a half full one", half, part_call),
    *merged("send_merged", "many to a nearly full one", Collected.sends_to_one, part_call),
    *merged("send_merged", f"{ONE_EACH}, a chunk of Spark", one_each, on(send_once, FILLED, MARK)),
    *merged("spark_read", "a chunk", due, chunk()),
    *merged("spark_read", "a replay", Collected.read, chunk(AGAIN)),
    *merged("spark_read", "a replay that puts half back beside fresh copies",
            lambda slot: slot.fresh(slot.read(), FAR), chunk(AGAIN, 0)),
    *merged("spark_settle", "an ack", Collected.read, SETTLE["ack"]),
    *merged("spark_read", "a replay that buries all again",
            lambda slot: slot.dead(slot.read()), chunk(AGAIN), max_retries=0),
    *merged("spark_settle", "an ack of what was refused beside fresh copies",
            lambda slot: slot.fresh(slot.refused(5_000), FAR), SETTLE["ack"]),
    *merged("spark_settle", "an ack that buries what was refused again",
            lambda slot: slot.dead(slot.refused(None)), SETTLE["ack"]),
    *merged("claim", "due", due, CLAIM),
    *merged("claim", "due, which waited for a retry, too",
            lambda slot: slot.waiting(slot.fresh(slot.some()), 60), CLAIM),
    *merged("claim", "expired claims that fold back",
            lambda slot: slot.held(slot.fresh(slot.some(SWEEP_LIMIT), FAR), 5, 10**8), CLAIM),
    *merged("claim", "expired claims that die again",
            lambda slot: slot.held(slot.dead(slot.some(SWEEP_LIMIT)), 0, 10**8), CLAIM),
    *merged("claim", "retries that are due beside fresh copies",
            lambda slot: slot.waiting(slot.fresh(slot.some(SWEEP_LIMIT), FAR), -60), CLAIM),
    *merged("claim", OUTLIVED, outlived, CLAIM, P, ttl="1s", ties="any"),
    *merged("claim", "everything at once", Collected.everything, on(claim_slot, MAX_BATCH, FILLED)),
    *merged("claim", "slots in which claims have expired", Collected.slots, claim_slots, slots=64),
    *merged("settle", "to release beside fresh copies", lambda slot: slot.nacks("release", at_once=True), SETTLED),
    *merged("settle", "to retry beside fresh copies", lambda slot: slot.nacks("retry"), SETTLED),
    *merged("settle", "to bury again",
            lambda slot: Outcomes(nacks=nacks(slot.held(slot.dead(slot.some(NACK_BATCH))), "bury", 0)), SETTLED),
    *merged("settle", "1,000 acks", lambda slot: Outcomes(slot.held(slot.some(MAX_BATCH))), SETTLED),
    *merged("redrive", "into fresh copies",
            lambda slot: slot.fresh(slot.dead(slot.some(NACK_BATCH)), FAR), REDRIVE),
    *merged("reschedule", BESIDE,
            lambda slot: slot.fresh(slot.waiting(slot.some(control.CONTROL_BATCH), 60), FAR), RESCHEDULE),
    *merged("promote", BESIDE,
            lambda slot: slot.fresh(slot.waiting(slot.some(control.CONTROL_BATCH), 60), FAR),
            on(control.promote, FILLED, "me")),
]  # fmt: skip
