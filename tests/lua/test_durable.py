"""Every durable script writes on each of its paths.

From Redis 7.2 on WAIT and WAITAOF wait for the writes of their own connection only. An answer that relies on what
another call has written has to write, too, or it is confirmed while only the master has that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.lua.durable_cases import CASES, DURABLE, made, script_of
from tests.support.bindings import MODULES, bound_in
from tests.support.core import ScriptLibrary
from tests.support.servers import RedisServer
from tests.support.slots import T0, SlotUnderTest, scripts_with_fake_clock

ADDS = ("send", "stream_send", "redrive", "stream_redrive")
"""Scripts that add something: at maxmemory they are refused, but for a repeat that adds nothing."""

ADDS_AGAIN = {name for name in CASES if name.startswith("send:") and name != "send: chunk"} | {
    "stream_send",
    "stream_send with open ids",
}
"""Those that add something with each repeat, or count it."""


def test_every_durable_script_has_a_case() -> None:
    assert set(map(script_of, CASES)) == DURABLE
    assert len(DURABLE) > 15


def test_every_script_of_control_is_durable() -> None:
    """As docs/operate/topologies.md promises."""
    [control] = (module for module in MODULES if module.stem == "control")
    assert all(script.durable for script in bound_in(control).values())


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def library() -> ScriptLibrary:
    return scripts_with_fake_clock()


@pytest.fixture
def slot(server: RedisServer, library: ScriptLibrary, case: str) -> Iterator[SlotUnderTest]:
    slot = SlotUnderTest(server.url, CASES[case].topic(), library)
    slot.client.flushall()
    slot.set_clock(T0)
    slot.client.script_load(library.text(script_of(case)))
    yield slot
    server.config_set("maxmemory", 0)
    slot.close()


def writes(slot: SlotUnderTest) -> int:
    """Return how many changes the server has made, each of which replicas would get."""
    found: Any = slot.client.info("persistence")
    return found["rdb_changes_since_last_save"]


def dump_of(slot: SlotUnderTest) -> str:
    """Return what the server holds; a time that the last call has noted stands as such: a repeat may note its own."""
    return repr(slot.dump()).replace(str(slot.now_ms), "now").replace(str(slot.now_ms - 1_000), "now")


@pytest.mark.parametrize("full", [False, True], ids=["empty", "full"])
@pytest.mark.parametrize("case", CASES)
def test_each_answer_writes(case: str, full: bool, slot: SlotUnderTest) -> None:
    call = made(slot, case, full)
    for number in range(3):
        dump, before = dump_of(slot), writes(slot)
        slot.run(call)
        assert writes(slot) > before, f"call {number} wrote nothing"
        if number and case not in ADDS_AGAIN:
            assert dump_of(slot) == dump
        slot.advance(1_000)


@pytest.mark.parametrize("full", [False, True], ids=["empty", "full"])
@pytest.mark.parametrize("case", [case for case in CASES if case not in ADDS_AGAIN])
def test_what_adds_nothing_is_answered_by_a_full_redis(
    case: str, full: bool, slot: SlotUnderTest, server: RedisServer
) -> None:
    call = made(slot, case, full)
    if case.startswith(ADDS):
        slot.run(call)
    server.config_set("maxmemory", 1)
    for _ in range(2):
        slot.run(call)
