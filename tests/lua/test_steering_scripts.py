"""The scripts that steer and look: reschedule, promote, pause, audit, find, search, purges, lists, the workers'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmq import ControlResult, DeadMessage, TopicType, WorkerInfo
from tests.conftest import MakeSlot
from tests.lua.cases import FAILURE, FULL
from tests.support.core import WORKER_INFOS_KEY, WORKERS_KEY, Nack, ages_for, control, shared, viewing
from tests.support.core import dead as dead_
from tests.support.slots import T0, SlotState, SlotUnderTest, with_hints

DONE, IN_FLIGHT, ABSENT = ControlResult.DONE, ControlResult.IN_FLIGHT, ControlResult.ABSENT
SECOND = T0 // 1000


def promote(slot: SlotUnderTest, *contents: bytes, actor: str = "") -> list[ControlResult]:
    return slot.run(with_hints(control.promote(slot.topic, 0, contents, actor)))


def audit_of(slot: SlotUnderTest) -> list[dict[bytes, bytes]]:
    rows: Any = slot.client.xrange(slot.keys.audit)
    return [fields for _, fields in rows]


def test_promote_on_a_time_topic(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    before = slot.seed(FULL)
    answers = promote(slot, b"due", b"later", b"patient", b"held", b"dead", b"later")
    assert answers == [DONE, DONE, DONE, IN_FLIGHT, ABSENT, DONE]
    assert slot.state() == replace(
        before,
        store={**before.store, b"later": T0, b"patient": 3},
        retry={b"waiting": before.retry[b"waiting"]},
        hints=[0],
    )


def test_promote_with_priorities(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.seed(
        SlotState(store={b"a": 50, b"b": 90, b"retry": 3}, retry={b"waiting": SECOND * 1000 + 9_003, b"a": 9_003})
    )
    assert promote(slot, b"a", b"a") == [DONE, DONE]
    assert slot.state().store == {b"a": 91, b"b": 90, b"retry": 3}
    assert slot.state().totals["merged"] == 1
    assert promote(slot, b"retry", b"waiting") == [DONE, DONE]
    state = slot.state()
    assert (state.store, state.retry) == ({b"a": 91, b"b": 90, b"retry": 92, b"waiting": 93}, {})


@pytest.mark.parametrize("ties", ["any", "oldest"])
def test_promote_goes_above_equals(ties: str, make_slot: MakeSlot) -> None:
    """The order of equal scores is no promise: whoever is promoted has none beside it, and then stays as it is."""
    slot = make_slot(TopicType.PRIORITY, ties=ties)
    scale = ages_for(slot.topic.max_priority).scale
    slot.seed(SlotState(store={b"a": 50 * scale + 7, b"z": 50 * scale + 7}))
    for _ in range(2):
        promote(slot, b"z")
        assert slot.state().store == {b"a": 50 * scale + 7, b"z": 51 * scale + 7}


@pytest.mark.parametrize("store", [{b"retry": 3}, {b"retry": 16}])
def test_promote_gives_a_lone_retry_a_priority(make_slot: MakeSlot, store: dict[bytes, int]) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.seed(SlotState(store=store))
    promote(slot, b"retry")
    assert slot.state().store == {b"retry": 17}


def test_promote_goes_above_the_largest_priority_that_can_be_sent(make_slot: MakeSlot) -> None:
    # pitfall 13: there a score is exact only if it is even
    slot = make_slot(TopicType.PRIORITY)
    slot.seed(SlotState(store={b"a": 2**53 - 1, b"b": 50, b"c": 60, b"z": 2**53 - 1}))
    for content in (b"b", b"c", b"a", b"a"):
        promote(slot, content)
    assert slot.state().store == {b"z": 2**53 - 1, b"b": 2**53, b"c": 2**53 + 2, b"a": 2**53 + 4}
    found = slot.claim(2).messages
    assert [(each.content, each.store_score) for each in found] == [(b"a", 2**53 + 4), (b"c", 2**53 + 2)]
    slot.nack(Nack(b"a", found[0].claim_score, "release", found[0].store_score))
    assert slot.state().store[b"a"] == 2**53 + 4


def test_pause_and_resume(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.send((b"a", 50))
    answers = [slot.run(with_hints(control.pause(slot.topic, 0, to, "me", "all"))) for to in (True, True)]
    assert (answers, slot.state().owner) == ([True, False], {"paused": "1"})
    assert slot.claim().messages == ()
    assert slot.claim().next_due_ms == 0
    answers = [slot.run(with_hints(control.pause(slot.topic, 0, to, "me", "all"))) for to in (False, False)]
    assert (answers, slot.state().owner, slot.state().hints) == ([True, False], {}, [0, 0, 0]), "one by the send"
    assert len(slot.claim().messages) == 1
    assert [line[b"outcome"] for line in audit_of(slot)] == [b"done", b"unchanged"] * 2


def test_purge_leaves_the_body_of_what_is_elsewhere(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    before = slot.seed(FULL)
    assert slot.run(control.purge_backlog(slot.topic, 0, "store", 2)) == 2
    body = {name: text for name, text in before.body.items() if name != b"due"}
    assert slot.state() == replace(
        before, store={b"later": before.store[b"later"]}, body=body, totals={**before.totals, "purged": 2}
    )
    assert slot.run(control.purge_backlog(slot.topic, 0, "retry", 1_000)) == 2
    state = slot.state()
    assert (state.retry, b"waiting" in state.body, b"waiting" in state.error) == ({}, False, False)
    assert slot.run(control.purge_backlog(slot.topic, 0, "store", 0)) == 0


def test_purge_of_a_retry_leaves_the_body_of_its_fresh_copy(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    slot.seed(SlotState(store={b"a": T0 + 5}, retry={b"a": SECOND * 1000 + 9_003}, body={b"a": b"1"}))
    assert slot.run(control.purge_backlog(slot.topic, 0, "retry", 10)) == 1
    assert slot.state().body == {b"a": b"1"}


def test_every_step_by_content_leaves_a_line_with_its_outcome(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    slot.seed(FULL)
    slot.run(control.cancel(slot.topic, 0, [b"due", b"held"], "me"))
    slot.run(control.reschedule(slot.topic, 0, [b"later"], ("after", 7), "me", "reprioritise"))
    promote(slot, b"nothing", actor="me")
    redrive = {"overwrite": False, "contents": [b"dead"], "actor": "me"}
    slot.run(dead_.redrive(slot.topic, 0, ("after", 0), **redrive))
    slot.run(dead_.purge_dead(slot.topic, 0, [b"long dead"], actor="me"))
    slot.run(control.audit(slot.topic, 0, "me", "purge", "all", "begun"))
    lines = [tuple(line[name] for name in (b"action", b"content", b"outcome")) for line in audit_of(slot)]
    assert lines == [
        (b"cancel", b"due", b"done"),
        (b"cancel", b"held", b"in_flight"),
        (b"reprioritise", b"later", b"done"),
        (b"promote", b"nothing", b"absent"),
        (b"redrive", b"dead", b"done"),
        (b"purge dead", b"long dead", b"dropped 1"),
        (b"purge", b"", b"begun"),
    ]


def test_the_audit_keeps_the_beginning_of_a_long_content(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    for long, kept in (
        (b"x" * 1_024, 1_024),
        (b"x" * 60_000, 1_024),
        (b"xx" + "€".encode() * 600, 1_022),
        (b"\xff" * 2_000, 1_024),
        (b"\x80" * 2_000, 1_020),
    ):
        slot.client.delete(slot.keys.audit)
        slot.run(control.cancel(slot.topic, 0, [long], "me"))
        line = audit_of(slot)[0]
        assert line[b"content"] == long[:kept]
        assert line[b"detail"] == (b"the content has %d bytes" % len(long) if len(long) > 1_024 else b"")


def test_without_an_actor_nothing_is_written_down(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    slot.seed(FULL)
    slot.cancel(b"due")
    slot.purge()
    assert audit_of(slot) == []


def test_find_reads_all_places(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    slot.seed(FULL)
    resent = slot.run(viewing.find(slot.topic, 0, b"resent"))
    assert resent.stored is not None
    assert resent.in_flight is not None
    assert (resent.stored.due_ms, resent.stored.body) == (T0 - 4, b"body of resent")
    assert (resent.in_flight.retries_left, resent.waiting, resent.dead) == (5, None, None)
    waiting = slot.run(viewing.find(slot.topic, 0, b"waiting"))
    assert waiting.waiting is not None
    assert waiting.failure is not None
    assert (waiting.failure.type, waiting.failure.message) == (FAILURE["type"], FAILURE["message"])
    dead = slot.run(viewing.find(slot.topic, 0, b"dead")).dead
    assert dead is not None
    assert (dead.died_ms, dead.body, dead.attempts) == (T0 - 1_000, b"body of dead", 17)
    assert slot.run(viewing.find(slot.topic, 0, b"nothing")).gone


def test_search_in_all_places(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    slot.seed(FULL)
    cursors, found = slot.run(viewing.search(slot.topic, 0, b"*d*", 10, ("0", "0", "0", "0")))
    assert cursors == ("0", "0", "0", "0")
    places = {(each.place, each.content) for each in found}
    assert places == {
        ("store", b"due"),
        ("prepare", b"held"),
        ("prepare", b"expired"),
        ("prepare", b"used up"),
        ("dead", b"dead"),
        ("dead", b"long dead"),
    } | {("retry", name) for name in (b"waiting", b"patient") if b"d" in name} | {
        ("store", name) for name in (b"resent", b"later") if b"d" in name
    }
    by_content = {each.content: each for each in found}
    assert (by_content[b"due"].body, by_content[b"due"].body_bytes) == (b"body of due", 11)
    assert (by_content[b"long dead"].body, by_content[b"long dead"].body_bytes) == (None, 0)
    assert by_content[b"dead"].error_type == "ValueError"


def test_search_leaves_places_out(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    slot.seed(FULL)
    cursors, found = slot.run(viewing.search(slot.topic, 0, b"*", 10, ("", "", "", "0")))
    assert (cursors, {each.place for each in found}) == (("", "", "", "0"), {"dead"})


def test_search_hands_over_at_most_4_mib_of_bodies(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    names = [b"%d" % n for n in range(6)]
    slot.seed(SlotState(store=dict.fromkeys(names, T0), body=dict.fromkeys(names, b"x" * 1_048_576)))
    _, found = slot.run(viewing.search(slot.topic, 0, b"*", 10, ("0", "", "", "")))
    assert sorted(len(each.body or b"") for each in found) == [0, 0, 1_024, 1_024, 1_024, 1_024]
    assert {each.body_bytes for each in found} == {1_048_576}


def test_dead_reasons(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    names = [b"%d" % n for n in range(90)]
    slot.seed(
        SlotState(
            dead=dict.fromkeys(names, T0),
            reason={name: {**FAILURE, "type": f"E{n % 3}"} for n, name in enumerate(names)},
        )
    )
    total, counts = slot.run(dead_.dead_reasons(slot.topic, 0, 1_000))
    assert (total, counts) == (90, {"E0": 30, "E1": 30, "E2": 30})
    total, counts = slot.run(dead_.dead_reasons(slot.topic, 0, 10))
    assert (total, counts.total()) == (90, 10)


def test_workers_come_and_go(make_slot: MakeSlot) -> None:
    slot = make_slot()
    slot.client.delete(WORKERS_KEY, WORKER_INFOS_KEY)
    info = WorkerInfo("", "h", 1, 2, 0, 0, True, ()).to_json()
    try:
        for name in ("a", "b"):
            slot.run(shared.worker_beat(name, info, 60_000))
        slot.advance(59_999)
        slot.run(shared.worker_beat("b", info, 60_000))
        assert [(each.name, each.seen_ms, each.stale) for each in slot.run(shared.workers())[0]] == [
            ("b", slot.now_ms, False),
            ("a", T0, True),
        ]
        slot.advance(1)
        slot.run(shared.worker_beat("b", info, 60_000))
        assert [each.name for each in slot.run(shared.workers())[0]] == ["b"]
        slot.run(shared.worker_beat("c", info, 60_000))
        slot.advance(-3_600_000)
        slot.run(shared.worker_beat("b", info, 60_000))
        assert {each.seen_ms for each in slot.run(shared.workers())[0]} == {slot.now_ms}, "the clock was ahead"
        slot.advance(60_000)
        slot.run(shared.worker_beat("b", info, 60_000))
        assert [each.name for each in slot.run(shared.workers())[0]] == ["b"]
        slot.run(shared.worker_beat("b", "", 60_000))
        assert slot.run(shared.workers())[0] == []
        assert slot.client.hlen(WORKER_INFOS_KEY) == 0
    finally:
        slot.client.delete(WORKERS_KEY, WORKER_INFOS_KEY)


HELD = T0 * 1000 + 3
EVERYWHERE = SlotState(
    store={b"stored": T0 + 9, b"twice": T0 + 9, b"resent": T0 + 9},
    prepare={b"held": HELD, b"resent": HELD},
    retry={b"waiting": HELD, b"twice": HELD},
    body={b"waiting": b"1"},
    error={b"waiting": {}},
)


@pytest.mark.parametrize(
    ("kind", "how", "value", "score"),
    [
        (TopicType.RANGE_MERGE, "after", 5_000, T0 + 5_000),
        (TopicType.RANGE_MERGE, "after", 0, T0),
        (TopicType.FIXED_TIME, "at", T0 + 1, T0 + 1),
        (TopicType.FIXED_TIME, "at", 2**53 - 1, 2**53 - 1),  # pitfall 13
        (TopicType.PRIORITY, "priority", 2**53 - 1, 2**53 - 1),
    ],
)
def test_reschedule_gives_a_new_score_in_store(
    kind: TopicType, how: str, value: int, score: int, make_slot: MakeSlot
) -> None:
    slot = make_slot(kind)
    before = slot.seed(EVERYWHERE)
    names = b"stored", b"waiting", b"twice", b"held", b"resent", b"absent"
    assert slot.reschedule(how, value, *names) == [DONE, DONE, DONE, IN_FLIGHT, DONE, ABSENT]
    assert slot.state() == replace(
        before,
        store=dict.fromkeys([b"stored", b"waiting", b"twice", b"resent"], score),
        retry={},
        totals={"accepted": 7, "merged": 1},
        hints=[score if kind.timed else 0],
    )


def test_the_dead_are_listed_longest_dead_first(make_slot: MakeSlot) -> None:
    slot = make_slot()
    dead = {b"young": T0, b"old": T0 - 2, b"\xff": T0 - 1}
    before = slot.seed(SlotState(dead=dead, reason={b"old": {**FAILURE, "attempts": 17}}, dead_body={b"young": b"1"}))
    name = slot.topic.name
    old, middle, young = (
        DeadMessage(name, 0, b"old", None, T0 - 2, "ValueError", "no", 17, 1, 2),
        DeadMessage(name, 0, b"\xff", None, T0 - 1, "", "", 0, T0 - 1, T0 - 1),
        DeadMessage(name, 0, b"young", b"1", T0, "", "", 0, T0, T0),
    )
    assert slot.run(dead_.list_dead(slot.topic, 0, 0, 2)) == [old, middle]
    assert slot.run(dead_.list_dead(slot.topic, 0, 1, 1_000)) == [middle, young]
    assert slot.run(dead_.list_dead(slot.topic, 0, 3, 10)) == []
    assert slot.run(dead_.list_dead(slot.topic, 0, 0, 0)) == []
    assert slot.state() == before
    assert middle.text == "\\xff"


DEAD = {b"young": T0 - 1, b"old": T0 - 3, b"middle": T0 - 2}
BURIED = SlotState(
    store={b"old": T0}, dead=DEAD, reason={key: {} for key in DEAD}, dead_body={b"old": b"1"}, body={b"old": b"2"}
)


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        ([b"middle", b"absent", b"middle"], [b"young", b"old"]),
        ([b"old", b"middle"], [b"young"]),
        ([b"absent"], [b"young", b"old", b"middle"]),
        ([b"young", b"old", b"middle"], []),
    ],
)
def test_the_purged_are_gone_for_good(names: list[bytes], kept: list[bytes], make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(BURIED)
    purged = len(DEAD) - len(kept)
    assert slot.purge(*names) == purged
    assert slot.state() == replace(
        before,
        dead={name: DEAD[name] for name in kept},
        reason={key: {} for key in kept},
        dead_body={b"old": b"1"} if b"old" in kept else {},
        totals={"accepted": 4} | ({"purged": purged} if purged else {}),
    )
