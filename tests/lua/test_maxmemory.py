"""A Redis at its maxmemory: sends are refused with a clear error, and everything can still be drained."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq import Redriven, TopicType
from rmq.errors import MemoryFullError
from tests.lua.cases import OWNER, MakeCall, script_of
from tests.lua.every_case import EXAMPLES
from tests.support.core import Connections, Nack, dead, parse_url
from tests.support.one_slot import claim_slot
from tests.support.servers import RedisServer
from tests.support.slots import T0, SlotUnderTest, scripts_under_test, scripts_with_fake_clock

ADDS = [
    name
    for name in EXAMPLES
    if script_of(name) in ("send", "send_merged", "redrive", "stream_send", "stream_join", "stream_redrive")
]


@pytest.fixture(scope="module")
def small_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def full(small_server: RedisServer, request: pytest.FixtureRequest) -> Iterator[tuple[SlotUnderTest, MakeCall]]:
    """A slot with something in every key, on a Redis that takes no more, and what makes the call of a case."""
    case = EXAMPLES[getattr(request, "param", "claim")]
    slot = SlotUnderTest(small_server.url, case.topic("small"))
    slot.client.flushall()
    slot.set_clock(T0)
    make = case.prepare(slot)
    for library in (scripts_with_fake_clock(), scripts_under_test()):
        for name in library.names():
            slot.client.script_load(library.text(name))
    small_server.config_set("maxmemory", 1)
    yield slot, make
    small_server.config_set("maxmemory", 0)
    if slot.topic.type is not TopicType.STREAM:
        state = slot.state()
        assert (state.unaccounted, state.orphans) == (0, {})
    slot.close()


@pytest.fixture
def full_slot(full: tuple[SlotUnderTest, MakeCall]) -> SlotUnderTest:
    return full[0]


@pytest.mark.parametrize("full", ADDS, indirect=True)
def test_what_adds_is_refused_and_writes_nothing(full: tuple[SlotUnderTest, MakeCall]) -> None:
    # pitfall 9
    slot, make = full
    before = slot.dump()
    with pytest.raises(MemoryFullError, match="maxmemory"):
        slot.run(make())
    assert slot.dump() == before


@pytest.mark.parametrize("full", [name for name in EXAMPLES if name not in ADDS], indirect=True)
def test_what_drains_goes_on(full: tuple[SlotUnderTest, MakeCall]) -> None:
    # pitfall 9
    slot, make = full
    found = slot.run(make())
    assert not any(isinstance(each, Exception) for each in (found if isinstance(found, list) else [found]))


@pytest.mark.parametrize("full", ["redrive"], indirect=True)
def test_a_redrive_of_what_is_gone_is_answered(full_slot: SlotUnderTest) -> None:
    call = dead.redrive(full_slot.topic, 0, ("at", 2**52), overwrite=False, contents=[b"gone"], actor="me")
    assert full_slot.run(call) == [Redriven.ABSENT]


def test_a_full_redis_is_drained(full_slot: SlotUnderTest, small_server: RedisServer) -> None:
    # pitfall 9
    small_server.config_set("maxmemory", 0)
    full_slot.advance(10**6 + 10**5)
    small_server.config_set("maxmemory", 1)
    acks: list[tuple[bytes, int]] = []
    nacked: set[bytes] = set()
    for _ in range(10):
        reply = full_slot.claim(2, acks=acks, owner=OWNER)
        full_slot.nack(
            *(Nack(m.content, m.claim_score) for m in reply.messages if m.content not in nacked), owner=OWNER
        )
        acks = [(m.content, m.claim_score) for m in reply.messages if m.content in nacked]
        nacked |= {m.content for m in reply.messages}
    state = full_slot.state()
    assert (state.store, state.prepare, state.retry, state.body, state.error) == ({}, {}, {}, {}, {})
    assert set(state.dead) == {b"dead", b"long dead", b"used up"}


def test_the_shipped_scripts_drain_it_too(full_slot: SlotUnderTest, small_server: RedisServer) -> None:
    # pitfall 9, and 15: TIME comes before the first write
    connections = Connections(parse_url(small_server.url), scripts=scripts_under_test())
    connections.run(claim_slot(full_slot.topic, 0, 10, owner=OWNER))
    assert full_slot.state().totals["delivered"] > 0
    connections.close()
