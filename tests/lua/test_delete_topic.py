"""The script that drops a slot and leaves a tombstone, against a model of one slot and three clients."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq import TopicType
from rmq.errors import ScriptFailedError, TopicDeletedError
from tests.conftest import MakeSlot
from tests.lua.cases import FULL, apart, script_of, writes
from tests.lua.every_case import QUEUES, STREAMS
from tests.lua.stream_cases import seed
from tests.support.core import SlotDeletion, deletion, results_of, streams
from tests.support.slots import SlotUnderTest

STEPS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from("abc")),
    st.tuples(st.just("ask"), st.sampled_from(["d1", "d2", "d3"])),
    st.tuples(st.just("drop"), st.sampled_from(["d1", "d2", "d3"])),
    st.tuples(st.just("clear"), st.sampled_from(["d1", "d2", "d3"])),
)
NOT_OF_A_SLOT = {"worker_beat", "workers"}
WITHOUT_STORE = {"audit", "confirm", "pause", "adopt", "purge_dead", "list_dead", "dead_reasons", "untold_dead"}
"""Scripts that neither store nor hand out a message: they may run on what is left of a deleted topic."""


class Model:
    """What a slot holds, its tombstone, and the latest deletion that was cleared."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.tombstone: tuple[str, int] | None = None
        self.cleared = ""

    def step(self, step: str, name: str) -> SlotDeletion:
        """Return what `ask`, `drop` or `clear` of the deletion `name` answers."""
        owner = self.tombstone[0] if self.tombstone else ""
        if step == "clear":
            self.tombstone, self.cleared = self.tombstone if owner > name else None, max(self.cleared, name)
        if step == "clear" or name <= self.cleared or name < owner:
            return SlotDeletion("cleared", 0)
        if owner != name:
            if step == "ask" and self.held:
                return SlotDeletion("kept", len(self.held))
            self.tombstone, self.held = (name, len(self.held)), set()
        assert self.tombstone is not None
        return SlotDeletion("buried", self.tombstone[1])


def delete(slot: SlotUnderTest, step: str, name: str) -> SlotDeletion:
    if step == "clear":
        return slot.run(deletion.clear_slot(slot.topic, 0, name))
    return slot.run(deletion.delete_slot(slot.topic, 0, name, (), force=step == "drop"))


@pytest.mark.hypothesis
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=12))
def test_nothing_is_dropped_without_being_counted(steps: list[tuple[str, str]], make_slot: MakeSlot) -> None:
    slot, model = make_slot(TopicType.PRIORITY, checked=False), Model()
    for step, name in steps:
        if step != "send":
            assert delete(slot, step, name) == model.step(step, name)
        elif model.tombstone is None:
            slot.send((name.encode(), 1_000))
            model.held.add(name)
        else:
            with pytest.raises(TopicDeletedError):
                slot.send((name.encode(), 1_000))
        kind: Any = slot.client.type(slot.keys.store)
        assert kind == (b"string" if model.tombstone else b"zset" if model.held else b"none")
    if model.tombstone is None:
        assert {name.decode() for name in slot.state().store} == model.held
    slot.close()


@pytest.mark.parametrize("merges", [False, True])
def test_all_keys_go_and_all_messages_are_counted(merges: bool, make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, checked=False)
    state = slot.seed(apart(FULL) if merges else FULL)
    number = len(state.store) + len(state.prepare) + len(state.retry) + len(state.dead)
    before = slot.dump()
    assert delete(slot, "ask", "d") == ("kept", number)
    assert slot.dump() == before
    assert delete(slot, "drop", "d") == ("buried", number)
    assert slot.client.get(slot.keys.store) == f"rmq:deleted d {number}".encode()
    assert set(slot.dump()) == {slot.keys.store.encode(), slot.keys.meta.encode()}
    kept: Any = slot.client.hgetall(slot.keys.meta)
    assert kept == {b"epoch": b"5", b"ensemble": b"zk"}


@pytest.mark.parametrize("script", [name for name in QUEUES if script_of(name) not in NOT_OF_A_SLOT | WITHOUT_STORE])
def test_every_script_is_refused(script: str, make_slot: MakeSlot) -> None:
    slot, make = QUEUES[script].made(make_slot, checked=False)
    delete(slot, "drop", "d")
    before = slot.dump()
    found: Any = None
    try:
        found = slot.run(make())
    except TopicDeletedError:
        pass
    else:  # a call for several slots has an error for each
        assert [type(each) for each in found] == [TopicDeletedError]
    assert slot.dump() == before


@pytest.mark.parametrize("script", [name for name in STREAMS if writes(name) and name != "stream_untold_dead"])
def test_every_script_of_a_stream_is_refused(script: str, make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.STREAM, checked=False)
    names = seed(slot.client, slot.topic)
    assert slot.run(deletion.delete_slot(slot.topic, 0, "d", groups_of(slot), force=True)).outcome == "buried"
    before = slot.dump()
    with pytest.raises(TopicDeletedError):
        results_of(slot.run(STREAMS[script].make(slot.topic, names)))
    assert slot.dump() == before


def groups_of(slot: SlotUnderTest) -> tuple[str, ...]:
    return slot.run(streams.stats(slot.topic, 0)).groups


def test_a_group_that_was_not_named_is_not_lost(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.STREAM, checked=False)
    seed(slot.client, slot.topic)
    before = slot.dump()
    assert slot.run(deletion.delete_slot(slot.topic, 0, "d", (), force=True)).outcome == "groups"
    assert slot.dump() == before


def test_a_group_of_a_stream_without_entries_is_not_lost(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.STREAM, checked=False)
    seed(slot.client, slot.topic)
    slot.client.xtrim(slot.keys.store, 0, approximate=False)
    assert slot.run(deletion.delete_slot(slot.topic, 0, "d", (), force=True)).outcome == "groups"
    assert slot.run(deletion.delete_slot(slot.topic, 0, "d", groups_of(slot), force=True)).outcome == "buried"
    assert set(slot.dump()) <= {slot.keys.store.encode(), slot.keys.meta.encode()}


def test_clearing_counts_on_a_stream_with_groups_too(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.STREAM, checked=False)
    seed(slot.client, slot.topic)
    assert delete(slot, "clear", "d") == ("cleared", 0)
    assert delete(slot, "drop", "d") == ("cleared", 0)


def test_an_earlier_deletion_drops_nothing_that_came_after_a_later_one(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, checked=False)
    for step, name in (("drop", "d1"), ("clear", "d1"), ("drop", "d2"), ("clear", "d2")):
        delete(slot, step, name)
    slot.send((b"new", 1_000))
    assert delete(slot, "drop", "d1") == ("cleared", 0)
    assert {name.decode() for name in slot.state().store} == {"new"}


def test_a_key_of_another_program_is_left_alone(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, checked=False)
    slot.client.set(slot.keys.store, "foreign")
    with pytest.raises(ScriptFailedError, match="WRONGTYPE"):
        delete(slot, "drop", "d")
    assert slot.client.get(slot.keys.store) == b"foreign"
