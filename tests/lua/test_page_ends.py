"""Scripts read and write in pages: where a number ends one, and one beside it, nothing is lost, left or refused.

In queues, pages end at 256 (claims), 96 (sweeps), 100 and 250 (the dead that are trimmed; 250 also: failures that a
replay looks up), 128 (lists, purges with bodies) and 1,000 (acks, renewals, chunks of Spark, purges).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from rmq import Collect, ControlResult, Fixed, Merge, Redriven, Retention, Topic, TopicType
from rmq.spark import calls
from rmq.spark.calls import Claim, Driver, How, Reading
from tests.conftest import MakeSlot, MakeTopic
from tests.lua.cases import FAILURE, apart
from tests.lua.test_budgets import values
from tests.support.core import (
    Connections,
    Member,
    Nack,
    Outcomes,
    control,
    dead,
    group_keys,
    slot_keys,
    streams,
    viewing,
)
from tests.support.one_slot import claim_group, settle_group, settle_slot
from tests.support.slots import T0, SlotState, SlotUnderTest

HELD, EXPIRED = T0 * 1000 + 5, (T0 - 10**8) * 1000 + 5
PLACES = ("store", "prepare", "retry", "dead")
GONE = ("acked", "cancelled", "purged", "trimmed")
Names = list[bytes]
Act = Callable[[SlotUnderTest, Names], int]
"""Does something with all messages of a slot; returns of how many of them it says so."""


class Kind(NamedTuple):
    """A kind of topics: its type, its settings, and whether its messages have bodies."""

    type: TopicType
    settings: dict[str, Any]
    bodied: bool = False


KINDS = {
    "plain": Kind(TopicType.FIXED_TIME, {}),
    "any": Kind(TopicType.PRIORITY, {"ties": "any"}),
    "bodies, ttl": Kind(TopicType.PRIORITY, {"ties": "oldest", "ttl": "1h"}, True),
    "merge": Kind(TopicType.RANGE_MERGE, {"merge": Merge(Collect(), Fixed("1s"))}, True),
}
SCORES = {"retry": (T0 // 1000 - 1) * 1000 + 3, "dead": T0 - 1, "expired": EXPIRED, "prepare": HELD, "last try": 1}


def seeded(kind: Kind, place: str, names: Names) -> SlotState:
    """Return a slot with all messages in one place: `expired` in prepare, `last try` in store, `twins` in both.

    Behind twins stands one that is not in flight.
    """
    where = {"expired": "prepare", "last try": "store", "twins": "store"}.get(place, place)
    fresh = dict.fromkeys(names, T0 - 5) if kind.type.timed else {name: 5_000 + n for n, name in enumerate(names)}
    if kind.settings.get("ties") == "any":
        fresh = dict.fromkeys(names, 5_000)
    scores = dict.fromkeys(names, SCORES[place]) if place in SCORES else fresh
    parts: dict[str, Any] = {where: scores}
    if place == "twins":
        parts |= {
            "prepare": dict.fromkeys(names, HELD),
            "store": scores | {b"behind": T0 - 4 if kind.type.timed else 4_000},
        }
    if where == "dead":
        parts["reason"] = dict.fromkeys(names, FAILURE)
    if "ttl" in kind.settings and scores is fresh:
        parts["born"] = dict.fromkeys(names, T0 - 1)
    if kind.bodied:
        parts["dead_body" if where == "dead" else "body"] = values((Collect(), 1, 8), "v", names)
    return apart(SlotState(**parts)) if "merge" in kind.settings else SlotState(**parts)


def all_of(act: Callable[[], Any], size: Callable[[Any], int] = int) -> int:
    """Call until a call has done nothing; return how much all of them have."""
    done = 0
    while number := size(act()):
        done += number
    return done


def nacks(verb: Any, number: int = 0) -> Act:
    def act(slot: SlotUnderTest, names: Names) -> int:
        left = [Nack(name, HELD, verb, number, "E", "m") for name in names]
        reply = slot.run(settle_slot(slot.topic, 0, Outcomes(nacks=left)))
        return len(left) - reply.left - len(reply.stale)

    return act


def acks(names: Names) -> list[tuple[bytes, int]]:
    return [(name, HELD) for name in names]


def whole(slot: SlotUnderTest, names: Names) -> int:
    """Ack a claim by its score, or where its messages have bodies by their names."""
    reply = slot.claim(0, whole=[(HELD, len(names))])
    return len(names) - len(slot.ack(*acks(names)) if reply.unmatched else reply.stale)


def trimmed(slot: SlotUnderTest, names: Names) -> int:
    slot.advance(31 * 86_400_000)
    return all_of(lambda: (len(slot.state().dead), slot.claim(0))[0] - len(slot.state().dead))


def read(slot: SlotUnderTest, number: int, driver: int = 1, max_replays: int = 9) -> Names:
    """Read all chunks of a batch, each of which could have more than there is."""
    chunks = -(-number // 1_000)
    reading = Reading(Driver("q", driver), 1, chunks * 1_000, max_replays, False)
    parts = (calls.read(slot.topic, reading, 0, chunk, 1_000, chunk * 1_000) for chunk in range(chunks))
    return [content for part in parts for content in slot.run(part).contents]


def settled(slot: SlotUnderTest, number: int, verb: Any) -> int:
    """Ack or renew all chunks of a batch; return how many messages had an end, or a new lease."""
    replies = [
        slot.run(calls.settle(slot.topic, 0, Driver("q", 1), 1, chunk, verb)) for chunk in range(-(-number // 1_000))
    ]
    assert [(reply.lost, reply.more) for reply in replies] == [(0, 0)] * len(replies)
    return sum(reply.done + reply.refused for reply in replies)


def spark(then: Callable[[SlotUnderTest, int], int]) -> Act:
    def act(slot: SlotUnderTest, names: Names) -> int:
        assert sorted(read(slot, len(names))) == names
        return then(slot, len(names))

    return act


def swept(slot: SlotUnderTest) -> int:
    return all_of(lambda: slot.claim(0).swept)


def replayed_after_a_sweep(slot: SlotUnderTest, number: int) -> int:
    slot.advance(62_000)
    assert swept(slot) == number
    return len(read(slot, number, 2))


def acked_after_a_sweep(slot: SlotUnderTest, number: int) -> int:
    slot.advance(62_000)
    assert swept(slot) == number
    return settled(slot, number, "ack")


def behind_twins(slot: SlotUnderTest, names: Names) -> int:
    """Search behind what is in flight, as a worker and as a query of Spark; what the worker finds, it gives back."""
    start = 0
    while not (found := slot.claim(1_000, start=start)).messages:
        start = found.resume
        assert start > 0
    [behind] = found.messages
    assert slot.nack(Nack(behind.content, behind.claim_score, "release", behind.store_score)) == ()
    reading = Reading(Driver("q", 1), 1, 1_000, 9, False)
    chunk = slot.run(calls.read(slot.topic, reading, 0, 0, 1_000))
    while chunk.resume:
        chunk = slot.run(calls.read(slot.topic, reading, 0, 0, 1_000, 0, chunk.resume))
    assert [behind.content] == chunk.contents == [b"behind"]
    return len(names)


def refused(slot: SlotUnderTest, number: int) -> int:
    names = read(slot, number)
    for chunk, first in enumerate(range(0, number, 1_000)):
        claim, how, part = Claim(Driver("q", 1), 1, chunk), How(None, "E", "m"), names[first : first + 1_000]
        assert slot.run(calls.refuse_contents(slot.topic, 0, claim, how, part)) == (len(part), 0)
    return settled(slot, number, "ack")


def scanned(slot: SlotUnderTest, names: Names) -> int:
    rows, cursor = list[Any](), "0"
    while cursor:
        page = slot.run(calls.read_place(slot.topic, 0, "store", "scan", cursor, 1_000))
        rows, cursor = rows + page.rows, page.cursor
    named = slot.run(calls.read_place(slot.topic, 0, "store", "named", contents=names[:1_000]))
    assert sorted(row[0] for row in named.rows) == names[:1_000]
    return len({row[0] for row in rows})


def listed(call: Callable[[SlotUnderTest, int], list[Any]]) -> Act:
    """Read a place page by page."""

    def act(slot: SlotUnderTest, names: Names) -> int:
        found: list[Any] = []
        while page := call(slot, len(found)):
            found += page
        assert sorted(each.content for each in found) == names
        return len(found)

    return act


def beside(*ends: int) -> tuple[int, ...]:
    """Return the numbers that end a page, and one less and one more."""
    return tuple(number for end in ends for number in (end - 1, end, end + 1))


class Case(NamedTuple):
    """What is done with messages that are all in one place, where they are then, at which numbers and kinds."""

    place: str
    act: Act
    ends: str
    numbers: tuple[int, ...]
    kinds: tuple[str, ...]


def of(place: str, ends: str, numbers: tuple[int, ...], *kinds: str) -> Callable[[Act], Case]:
    return lambda act: Case(place, act, ends, numbers, kinds or ("plain", "bodies, ttl", "merge"))


def score(slot: SlotUnderTest) -> tuple[str, int]:
    return ("at", 2**52) if slot.topic.type.timed else ("priority", 7)


def purged(slot: SlotUnderTest, place: str) -> int:
    return all_of(lambda: slot.run(control.purge_backlog(slot.topic, 0, place, 1_000)))


ALL, TWO, DONE, REDRIVEN = tuple(KINDS), ("plain", "merge"), ControlResult.DONE, Redriven.DONE
CLAIMED = (*beside(256), 1_000, 1_001)
CASES = {
    "acks": of("prepare", "acked", beside(1_000))(lambda slot, names: len(names) - len(slot.ack(*acks(names)))),
    "acks with a claim": of("prepare", "acked", (1_000, 1_001), *TWO)(
        lambda slot, names: len(names) - len(slot.claim(0, acks=acks(names)).stale)
    ),
    "a whole claim": of("prepare", "acked", (1_000,))(whole),
    "nacks": of("prepare", "store", (257,))(nacks("retry")),
    "nacks with a delay": of("prepare", "retry", (257,))(nacks("retry", 9_000)),
    "burials": of("prepare", "dead", (257,))(nacks("bury")),
    "releases": of("prepare", "store", (257,))(nacks("release", 2_000)),
    "renewals": of("prepare", "prepare", beside(1_000), "plain")(
        lambda slot, names: sum(map(bool, slot.extend(*acks(names)).claim_scores))
    ),
    "expired leases": of("expired", "store", (*beside(96), 192))(lambda slot, names: swept(slot)),
    "due retries": of("retry", "store", (*beside(96), 192))(lambda slot, names: swept(slot)),
    "the dead are trimmed": of("dead", "trimmed", beside(100, 250))(trimmed),
    "claims": of("store", "prepare", CLAIMED, *ALL)(
        lambda slot, names: all_of(lambda: len(slot.claim(1_000).messages))
    ),
    "claims of long contents": of("store", "prepare", beside(64), "plain", "any")(
        lambda slot, names: all_of(lambda: len(slot.claim(1_000).messages))
    ),
    "searches behind twins": of("twins", "twins", (*beside(256), *beside(1_000), 2_500), *ALL)(behind_twins),
    "cancel": of("store", "cancelled", (1_000,))(lambda slot, names: slot.cancel(*names).count(DONE)),
    "promote": of("retry", "store", (257,))(
        lambda slot, names: slot.run(control.promote(slot.topic, 0, names)).count(DONE)
    ),
    "reschedule": of("retry", "store", (1_000,))(lambda slot, names: slot.reschedule(*score(slot), *names).count(DONE)),
    "purge the backlog": of("store", "purged", beside(1_000), "plain")(lambda slot, names: purged(slot, "store")),
    "purge bodies": of("store", "purged", beside(128))(lambda slot, names: purged(slot, "store")),
    "purge what waits": of("retry", "purged", beside(128))(lambda slot, names: purged(slot, "retry")),
    "redrive": of("dead", "store", (1_000,))(lambda slot, names: slot.redrive(*score(slot), *names).count(REDRIVEN)),
    "purge the dead": of("dead", "purged", (1_000,))(lambda slot, names: slot.purge(*names)),
    "the dead, listed": of("dead", "dead", (*beside(128), 1_000), "merge")(
        listed(lambda slot, start: slot.run(dead.list_dead(slot.topic, 0, start, 1_000)))
    ),
    "the backlog, listed": of("store", "store", (*beside(128), 1_000), "bodies, ttl")(
        listed(lambda slot, start: slot.run(viewing.peek(slot.topic, 0, "store", start, 1_000))[0])
    ),
    "Spark: scan": of("store", "store", (*beside(128), 1_000), "bodies, ttl")(scanned),
    "Spark: ack": of("store", "acked", CLAIMED, *ALL)(spark(lambda slot, number: settled(slot, number, "ack"))),
    "Spark: renewal": of("store", "prepare", (1_000, 1_001), *TWO)(
        spark(lambda slot, number: settled(slot, number, "renew"))
    ),
    "Spark: replay": of("store", "prepare", (256, 1_001))(spark(lambda slot, number: len(read(slot, number, 2)))),
    "Spark: replay of what was swept": of("store", "prepare", (256, 1_000), *TWO)(spark(replayed_after_a_sweep)),
    "Spark: ack of what was swept": of("store", "acked", (256, 1_000), *TWO)(spark(acked_after_a_sweep)),
    "Spark: half goes back": of("store", "half", (999, 1_000), *TWO)(
        spark(lambda slot, number: 2 * len(read(slot, number, 2, 0)) + number % 2)
    ),
    "Spark: last replay": of("last try", "dead", (*beside(250), 1_000), *TWO)(
        spark(lambda slot, number: number - len(read(slot, number, 2)))
    ),
    "Spark: refused": of("store", "dead", (256, 1_001), *TWO)(spark(refused)),
}


ENDS: dict[str, Callable[[int], dict[str, int]]] = {
    "half": lambda number: {"prepare": number // 2, "store": number - number // 2},
    "twins": lambda number: {"prepare": number + 1, "store": number},
}


@pytest.mark.parametrize(("case", "kind"), [(case, kind) for case in CASES for kind in CASES[case].kinds])
def test_at_the_end_of_a_page(case: str, kind: str, make_slot: MakeSlot) -> None:
    slot = make_slot(KINDS[kind].type, **KINDS[kind].settings)
    for number in CASES[case].numbers:
        names = [b"%04d" % each + b"x" * (1_100 if "long" in case else 0) for each in range(number)]
        slot.set_clock(T0)
        slot.seed(seeded(KINDS[kind], CASES[case].place, names))
        if KINDS[kind].bodied:
            slot.client.hset(slot.keys.meta, "body_bound", 4_096)  # as sends leave it
        assert CASES[case].act(slot, names) == number
        state, ends = slot.state(), ENDS.get(CASES[case].ends, lambda number: {CASES[case].ends: number})
        found = {each: len(getattr(state, each)) for each in PLACES if getattr(state, each)}
        found |= {each: state.totals[each] for each in GONE if state.totals.get(each)}
        assert found == ends(number)
        assert (state.unaccounted, state.orphans) == (0, {})
        slot.client.delete(*slot.dump())


# groups of streams

ME, OTHER = Member("g", "me"), Member("g", "other")


class Group(NamedTuple):
    """A group that has been handed all entries of a slot."""

    connections: Connections
    client: Any
    topic: Topic
    ids: list[str]

    @property
    def acks(self) -> list[tuple[bytes, int]]:
        return [(each.encode(), 1) for each in self.ids]

    def all_claims(self, member: Member = ME) -> int:
        """Claim until nothing is due."""
        done, due = 0, True
        while due:
            reply = self.connections.run(claim_group(self.topic, 0, member, 1_000))
            done, due = done + len(reply.messages), 0 < reply.next_due_ms <= reply.now_ms
        return done

    def nacks(self, verb: Any, delay_ms: int = 0) -> int:
        left = [Nack(name, 1, verb, delay_ms, "E", "m") for name, _ in self.acks]
        reply = self.connections.run(settle_group(self.topic, 0, ME, Outcomes(nacks=left)))
        return len(left) - reply.left - len(reply.stale)


def acked_by_group(group: Group) -> int:
    reply = group.connections.run(settle_group(group.topic, 0, ME, Outcomes(group.acks)))
    return len(group.ids) - len(reply.stale) - len(reply.lost)


def renewed_by_group(group: Group) -> int:
    return sum(map(bool, group.connections.run(streams.extend(group.topic, 0, ME, group.acks)).claim_scores))


def resumed(group: Group) -> int:
    return all_of(lambda: group.connections.run(streams.resume(group.topic, 0, ME, 128)), lambda reply: reply[1])


def forgotten(group: Group) -> int:
    return all_of(
        lambda: group.connections.run(streams.forget(group.topic, 0, "g", "me", 0, 100)), lambda reply: reply[1]
    )


def taken_over(group: Group) -> int:
    store = slot_keys(group.topic.name, 0).store
    group.client.xclaim(store, "g", "me", 0, group.ids, idle=10**8, justid=True)
    group.client.hset(group_keys(group.topic.name, 0, "g").group, "scan_at", 1)
    return group.all_claims(OTHER)


def redelivered(group: Group) -> int:
    assert group.nacks("retry") == len(group.ids)
    return group.all_claims(OTHER)


def redriven(group: Group, trimmed: bool) -> int:
    assert group.nacks("bury") == len(group.ids)
    if trimmed:
        trim = streams.trim(group.topic, 0, Retention(max_length=0, approximate=False), now=True)
        assert all_of(lambda: group.connections.run(trim).dropped) == len(group.ids)
    return group.connections.run(dead.redrive_entries(group.topic, 0, "g", group.ids)).count(REDRIVEN)


def passed_over(group: Group) -> int:
    group.connections.run(streams.move_group(group.topic, 0, "g", "all", through=True))
    assert group.all_claims() == 0
    return group.connections.run(streams.group_stats(group.topic, 0, "g")).totals["skipped"]


def walked(group: Group) -> int:
    found = group.connections.run(calls.walk(group.topic, 0, "g", calls.Reach("0-0", "+", 1_000, 10**6, False)))
    assert not found.more
    return found.number


STREAM_CASES: dict[str, tuple[Callable[[Group], int], str, tuple[int, ...]]] = {
    "reads": (lambda group: len(group.ids), "in flight", beside(3, 15, 63, 255)),
    "Spark: walk": (walked, "in flight", (*beside(256), 1_000)),
    "acks": (acked_by_group, "acked", beside(1_000)),
    "nacks": (lambda group: group.nacks("retry", 9_000), "waiting", (257,)),
    "burials": (lambda group: group.nacks("bury"), "dead", (257,)),
    "renewals": (renewed_by_group, "in flight", beside(256)),
    "what an earlier process held": (resumed, "waiting", beside(128)),
    "a consumer is removed": (forgotten, "waiting", beside(100)),
    "expired leases": (taken_over, "in flight", beside(64, 256)),
    "due retries": (redelivered, "in flight", beside(64)),
    "redrive": (lambda group: redriven(group, False), "waiting", (257,)),
    "redrive of what was trimmed": (lambda group: redriven(group, True), "lag", beside(100)),
    "a group that was moved back": (passed_over, "in flight", beside(100, 400)),
}
"""What is done with entries that were all handed to one consumer, where they are then, and at which numbers."""


@pytest.mark.parametrize("case", STREAM_CASES)
def test_at_the_end_of_a_page_of_a_stream(
    case: str, make_topic: MakeTopic, redis_client: Any, connections: Connections
) -> None:
    act, ends, sizes = STREAM_CASES[case]
    topic = make_topic(TopicType.STREAM, checked=False)
    for number in sizes:
        connections.run(streams.join(topic, 0, "g", "all"))
        pipeline = redis_client.pipeline()
        for each in range(number):
            pipeline.xadd(slot_keys(topic.name, 0).store, {"content": each})
        pipeline.hincrby(slot_keys(topic.name, 0).meta, "accepted", number)
        group = Group(connections, redis_client, topic, [each.decode() for each in pipeline.execute()[:-1]])
        assert (group.all_claims(), act(group)) == (number, number)
        stats = connections.run(streams.group_stats(topic, 0, "g"))
        found = {"in flight": stats.in_flight, "waiting": stats.waiting, "dead": stats.dead, "lag": stats.lag}
        found["acked"] = stats.totals.get("acked", 0)
        assert ({place: size for place, size in found.items() if size}, stats.unaccounted) == ({ends: number}, 0)
        redis_client.delete(*redis_client.keys(f"*{topic.name}_*"))
