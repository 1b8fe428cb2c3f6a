"""A slot of a stream topic with something in every key, and a call of every script on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Any

from rmq import Owner, Retention, Topic, TopicType
from tests.lua.cases import Example
from tests.support.core import (
    Call,
    EncodedMessage,
    Member,
    Nack,
    Outcomes,
    Turn,
    dead,
    group_keys,
    own_score,
    slot_keys,
    streams,
)
from tests.support.one_slot import claim_group, settle_group
from tests.support.slots import SlotUnderTest

OWNER = Owner(6, "zk")
"""A newer owner than the last one: its epoch is written down."""

ME = Member("g", "me")


@dataclass(frozen=True)
class Seeded:
    """Ids of what is in the stream.

    Attributes:
        held: With us, first delivery.
        used_up: With us, deliveries used up.
        expired: With somebody else, whose lease has run out.
        waiting: Waits for a retry that is due.
        dead: Dead, and still in the stream.
        gone: Dead, and no longer in the stream.
        lost: With somebody else, and no longer in the stream.
        fresh: Nobody has had it.
        held_too: With us, first delivery.
    """

    held: str
    used_up: str
    expired: str
    waiting: str
    dead: str
    gone: str
    lost: str
    held_too: str
    fresh: str


def seed(client: Any, topic: Topic, slot: int = 0) -> Seeded:
    """Fill all keys of a slot through the calls themselves, with the clock of the server."""
    keys, own = slot_keys(topic.name, slot), group_keys(topic.name, slot, "g")
    client.xgroup_create(keys.store, "g", "0", mkstream=True)
    added: list[bytes] = [client.xadd(keys.store, {"content": name}) for name in Seeded.__dataclass_fields__]  # pyright: ignore
    names = Seeded(*(entry_id.decode() for entry_id in added))
    client.xreadgroup("g", "me", {keys.store: ">"}, count=8)
    claim = client.xclaim
    claim(keys.store, "g", "me", 0, [names.used_up], idle=0, retrycount=99, justid=True)
    claim(keys.store, "g", "other", 0, [names.expired, names.lost], idle=10**8, retrycount=1, justid=True)
    claim(keys.store, "g", "(waiting)", 0, [names.waiting], idle=0, retrycount=1, justid=True)
    client.xack(keys.store, "g", names.dead, names.gone)
    client.zadd(own.retry, {padded(names.waiting): 5})
    client.hset(own.error, mapping=dict.fromkeys((names.used_up, names.waiting), '{"first_ms":"1"}'))
    client.zadd(own.dead, {names.dead: 10**13, names.gone: 10**13})
    client.hset(own.reason, mapping=dict.fromkeys((names.dead, names.gone), '{"attempts":3}'))
    packed = b"\x92\xa7content\xa1x"  # ["content", "x"], packed
    client.hset(own.dead_body, mapping={names.dead: packed, names.gone: packed})
    client.hset(own.group, mapping={"epoch": 5, "ensemble": "zk", "fresh": 8, "began": 0, "acked": 0})
    client.hset(keys.meta, mapping={"accepted": 9, "deleted": 2})
    client.hset(slot_keys(topic.name, slot).sizes, mapping={keys.store: 1, "last_id": names.held})
    client.xdel(keys.store, names.gone, names.lost)
    return names


def padded(entry_id: str) -> str:
    ms, _, sequence = entry_id.partition("-")
    return f"{ms}-{int(sequence):020}"


Case = Callable[[Topic, Seeded], Call[Any]]


def _claim(topic: Topic, names: Seeded) -> Call[object]:
    nacks = [Nack(names.used_up.encode(), 99, "retry", 0, "E", "m")]
    acks = [(names.held.encode(), 1)]
    return claim_group(topic, 0, ME, 10, owner=OWNER, outcomes=Outcomes(acks=acks, nacks=nacks))  # pyright: ignore


CALLS: dict[str, Case] = {
    "stream_untold_dead": lambda topic, names: dead.untold(topic, 0, Turn("ops", "me", 60_000), 10, "g"),
    "stream_send": lambda topic, names: streams.sends(topic)(0, [EncodedMessage(0, b"new", 0, b"b")], True),
    "stream_join": lambda topic, names: streams.join(topic, 0, "h", "all"),
    "stream_claim": _claim,
    "stream_settle: acks": lambda topic, names: settle_group(topic, 0, ME, Outcomes([(names.held.encode(), 1)]), OWNER),
    "stream_settle: nacks": lambda topic, names: settle_group(
        topic, 0, ME, Outcomes(nacks=[Nack(names.held.encode(), 1, "release"), Nack(names.used_up.encode(), 99)]), OWNER
    ),
    "stream_settle: whole": lambda topic, names: settle_group(topic, 0, ME, Outcomes(whole=[(own_score(5), 1)]), OWNER),
    "stream_extend": lambda topic, names: streams.extend(topic, 0, ME, [(names.held.encode(), 1), (b"1-1", 1)], OWNER),
    "stream_trim": lambda topic, names: streams.trim(
        topic, 0, Retention(max_length=0, max_age="0s", shrink=True, approximate=False), now=True
    ),
    "stream_delete": lambda topic, names: streams.delete(topic, 0, [names.fresh]),
    "stream_forget": lambda topic, names: streams.forget(topic, 0, "g", "other", 0, 10),
    "stream_resume": lambda topic, names: streams.resume(topic, 0, Member("g", "other"), 10),
    "stream_drop_group": lambda topic, names: streams.drop_group(topic, 0, "g"),
    "stream_move_group": lambda topic, names: streams.move_group(topic, 0, "g", "all", through=True),
    "stream_redrive": lambda topic, names: dead.redrive_entries(topic, 0, "g", [names.dead, names.gone, "1-1"]),
    "stream_look": lambda topic, names: streams.look(topic, [0], "g"),
    "stream_range": lambda topic, names: streams.read_range(topic, 0, "-", "+", 10, down=False),
    "stream_stats": lambda topic, names: streams.stats(topic, 0),
    "stream_group": lambda topic, names: streams.group_stats(topic, 0, "g"),
    "stream_consumers": lambda topic, names: streams.consumers(topic, 0, "g"),
    "stream_pending": lambda topic, names: streams.pending(topic, 0, "g", "-", 10, "me"),
    "stream_list_dead": lambda topic, names: dead.list_dead(topic, 0, 0, 10, "g"),
}  # pyright: ignore[reportAssignmentType]


def all_keys(topic: Topic, slot: int = 0) -> Iterator[str]:
    """Every key that a slot can have."""
    keys = slot_keys(topic.name, slot)
    yield from (keys.store, keys.meta, slot_keys(topic.name, slot).sizes)
    group = group_keys(topic.name, slot, "g")
    yield from (key for key in astuple(group) if key not in (keys.store, keys.meta, keys.wake))


def seeded(slot: SlotUnderTest) -> Seeded:
    """Fill all keys of slot 0."""
    return seed(slot.client, slot.topic)


def of_stream(name: str, call: Case) -> Example:
    """Return an example on slot 0 of a stream topic, with something in every key."""

    def unread(slot: SlotUnderTest, made: Call[Any]) -> set[str]:
        own = set(all_keys(slot.topic))
        return {key for key in made.keys if key not in own or (name == "stream_drop_group" and key != slot.keys.store)}

    nothing = Seeded(*(f"{number}-1" for number in range(1, 10)))
    return Example(TopicType.STREAM, call, seeded, {"max_retries": 16}, unread, nothing)


EXAMPLES = {name: of_stream(name, call) for name, call in CALLS.items()}
