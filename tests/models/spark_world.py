"""A streaming query of Spark that may die between any two steps, on the real scripts: who gets what, and how often.

A state is what Redis holds, what the checkpoint and the sink hold, and how far the driver is. Each step is what
`rmq/spark/source` does there: the ack of the last batch, the plan, the read, the sink's write, the commit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rmq.spark import calls
from rmq.spark.calls import Driver, Reading
from tests.support.core import query_keys
from tests.support.slots import SlotState, SlotUnderTest, dump_keys

QUERY = "q"
TICK_MS = 1_000
RENEWS = ("opened", "read", "written", "committed")
"""Phases in which the driver keeps the leases of its batch."""


@dataclass(frozen=True)
class World:
    """A state.

    Attributes:
        phase: How far the driver is; `dead`, `new`: it has not entered yet.
        generation: Of the driver.
        planned: Number of the last batch in the checkpoint's log of offsets.
        quota: Most messages of that batch.
        committed: Number of the last batch in the checkpoint's log of commits.
        rows: What the driver has read of its batch.
        sink: Batch -> its rows. A batch that is written again replaces them.
        taken: What another worker holds: content -> claim score.
        done: What that worker has handled and acked.
        deaths: How often a driver has died.
        now_ms: The time.
        dump: All keys, as Redis serialises them.
        slot: The same, to be read.
        acked: Number of the last batch that is marked as acked.
    """

    phase: str = "new"
    generation: int = 0
    planned: int = 0
    quota: int = 0
    committed: int = 0
    rows: tuple[bytes, ...] = ()
    sink: dict[int, tuple[bytes, ...]] = field(default_factory=dict[int, tuple[bytes, ...]])
    taken: dict[bytes, int] = field(default_factory=dict[bytes, int])
    done: frozenset[bytes] = frozenset()
    deaths: int = 0
    now_ms: int = 0
    dump: dict[str, bytes] = field(default_factory=dict[str, bytes])
    slot: SlotState = field(default_factory=SlotState)
    acked: int = 0


class SparkAlphabet:
    """What can happen to a query and beside it.

    Args:
        slot: A slot with an empty topic; its lease is one tick.
        contents: What was sent.
        limit: Most messages in a batch.
        others: Whether another worker takes part.
        rests: Whether a driver may be away for longer than a lease.
        deaths: Most deaths.
        to_others: Whether what Spark has committed must not come to another worker either.
    """

    def __init__(
        self,
        slot: SlotUnderTest,
        contents: tuple[bytes, ...],
        *,
        limit: int,
        others: bool,
        rests: bool,
        deaths: int,
        to_others: bool = True,
    ) -> None:
        self.contents, self.to_others = contents, to_others
        self.slot, self.limit, self.others, self.rests, self.deaths = slot, limit, others, rests, deaths
        own = query_keys(slot.topic.name, 0, QUERY)
        self.query = own.query
        self.keys = (*dump_keys(slot.keys), own.query, own.body)

    def first(self) -> World:
        self.slot.send(*((content, 5_000 + index) for index, content in enumerate(self.contents)))
        return self._now(World(now_ms=self.slot.now_ms))

    # what can happen

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Return each thing that can happen next, and the state after it."""
        yield from self._driver(world)
        if world.phase not in ("dead", "new") and world.deaths < self.deaths:
            yield "the driver dies", replace(world, phase="dead", rows=(), deaths=world.deaths + 1)
        if world.phase == "dead":
            yield "a driver starts", replace(world, phase="new")
        keeps = world.phase in RENEWS
        if keeps or self.rests:
            self._enter(world)
            self.slot.advance(TICK_MS)
            if keeps:
                self.slot.run(calls.settle(self.slot.topic, 0, self._name(world), world.planned, 0, "renew"))
            yield "a second passes", self._now(replace(world, now_ms=world.now_ms + TICK_MS))
        if self.others:
            yield from self._other(world)

    def _driver(self, world: World) -> Iterator[tuple[str, World]]:
        topic, name = self.slot.topic, self._name(world)
        match world.phase:
            case "new":
                self._enter(world)
                entered = self.slot.run(calls.enter(topic, QUERY))
                phase = "opened" if world.planned > world.committed else "committed" if world.committed else "acked"
                # what an earlier driver has committed is acked by the first trigger: nobody renews it before
                phase = "restarted" if phase == "committed" else phase
                yield "the driver enters", self._now(replace(world, phase=phase, generation=entered.generation))
            case "committed" | "restarted":
                self._enter(world)
                self.slot.run(calls.settle(topic, 0, name, world.committed, 0, "ack"))
                yield f"acks batch {world.committed}", self._now(replace(world, phase="settled"))
            case "settled":
                self._enter(world)
                self.slot.run(calls.settle(topic, 0, name, world.committed, -1, "ack"))
                yield f"marks batch {world.committed} as acked", self._now(replace(world, phase="acked"))
            case "acked":
                self._enter(world)
                self.slot.claim(0)
                due = len(self.slot.state().store)
                planned = world.planned + bool(due)
                quota, phase = min(due, self.limit), "opened" if due else "acked"
                what = f"plans batch {planned} of {quota}" if due else "finds nothing due"
                yield what, self._now(replace(world, phase=phase, planned=planned, quota=quota))
            case "opened":
                self._enter(world)
                reading = Reading(name, world.planned, world.quota, 3, strict=True)
                chunk = self.slot.run(calls.read(topic, reading, 0, 0, world.quota))
                yield (
                    f"reads batch {world.planned}",
                    self._now(replace(world, phase="read", rows=tuple(chunk.contents))),
                )
            case "read":
                sink = {**world.sink, world.planned: world.rows}
                yield f"the sink has batch {world.planned}", replace(world, phase="written", sink=sink)
            case "written":
                yield f"Spark commits batch {world.planned}", replace(world, phase="committed", committed=world.planned)
            case _:
                pass

    def _other(self, world: World) -> Iterator[tuple[str, World]]:
        self._enter(world)
        reply = self.slot.claim(1)
        if reply.messages:
            (claimed,) = reply.messages
            taken = {**world.taken, claimed.content: claimed.claim_score}
            yield f"a worker claims {claimed.content.decode()}", self._now(replace(world, taken=taken))
        elif reply.swept:
            yield "a worker's claim sweeps", self._now(world)
        for content, score in world.taken.items():
            self._enter(world)
            stale = self.slot.ack((content, score))
            taken = {other: score for other, score in world.taken.items() if other != content}
            done = world.done if stale else world.done | {content}
            yield f"the worker acks {content.decode()}", self._now(replace(world, taken=taken, done=done))

    def _name(self, world: World) -> Driver:
        return Driver(QUERY, world.generation)

    # Redis

    def _enter(self, world: World) -> None:
        """Put a state into Redis."""
        pipeline: Any = self.slot.client.pipeline(transaction=False)
        pipeline.delete(*self.keys)
        for key, value in world.dump.items():
            pipeline.restore(key, 0, value)
        pipeline.execute()
        self.slot.set_clock(world.now_ms)

    def _now(self, world: World) -> World:
        """Return a state with what Redis holds now."""
        pipeline: Any = self.slot.client.pipeline(transaction=False)
        for key in self.keys:
            pipeline.dump(key)
        pipeline.hget(self.query, "acked")
        *dumped, acked = pipeline.execute()
        dump = {key: value for key, value in zip(self.keys, dumped, strict=True) if value is not None}
        return replace(world, dump=dump, slot=self.slot.state(), acked=int(acked or 0))

    # what is the same, and what must hold

    def key(self, world: World) -> Hashable:
        slot = world.slot
        parts: list[Hashable] = []
        for content in self.contents:
            claim = slot.prepare.get(content)
            age_ms = min(world.now_ms - claim // 1000, 2 * TICK_MS) if claim else None
            mine = claim and world.taken.get(content) == claim
            places = slot.store.get(content), content in slot.dead, content in slot.retry
            parts.append((age_ms, claim and claim % 1000, mine, places, content in world.taken))
        course = world.phase, world.planned, world.quota, world.committed, world.acked, world.deaths
        return tuple(parts), course, world.rows, tuple(sorted(world.sink.items())), world.done

    def broken(self, world: World) -> str | None:
        comes_again = again(world, self.contents) if self.to_others else committed_twice(world, self.contents)
        return lost(world, self.contents) or comes_again


def lost(world: World, contents: tuple[bytes, ...]) -> str | None:
    """No message is lost: it is in Redis, or committed, or done by another worker."""
    slot = world.slot
    there = {*slot.store, *slot.prepare, *slot.retry, *slot.dead, *world.done, *_committed(world)}
    return next((f"{content.decode()} is lost" for content in contents if content not in there), None)


def again(world: World, contents: tuple[bytes, ...]) -> str | None:
    """What Spark has committed comes to nobody again."""
    rows = _committed(world)
    for content in contents:
        held = world.slot.prepare.get(content)
        if content in rows and (content in world.done or (held and world.taken.get(content) == held)):
            return f"{content.decode()} is committed, and comes to a worker, too"
    return committed_twice(world, contents)


def committed_twice(world: World, contents: tuple[bytes, ...]) -> str | None:
    """What Spark has committed comes to Spark again."""
    rows = _committed(world)
    return next((f"{content.decode()} is committed twice" for content in contents if rows.count(content) > 1), None)


def _committed(world: World) -> list[bytes]:
    return [content for seq, rows in world.sink.items() if seq <= world.committed for content in rows]
