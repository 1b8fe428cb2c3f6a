"""`adopt`: whose epochs a slot holds, changed on purpose only."""

from __future__ import annotations

from typing import Any

import pytest

from rmq import Adoption, Owner, TopicType
from rmq.errors import EnsembleMismatchError, FencedError
from tests.conftest import MakeSlot, MakeTopic
from tests.support.core import NO_OWNER, Connections, MovedOwner, adopt, control
from tests.support.one_slot import claim_slot
from tests.support.slots import SlotState, SlotUnderTest

OLD, NEW, THIRD = Owner(5_000, "old"), Owner(7, "new"), Owner(9, "third")
SEED = SlotState(store={b"a": 1}, owner={"epoch": "5000", "ensemble": "old"})


@pytest.fixture
def slot(make_slot: MakeSlot) -> SlotUnderTest:
    return make_slot(TopicType.FIXED_TIME)


def moved(slot: SlotUnderTest, from_ensemble: str, to_ensemble: str) -> Any:
    return slot.run(control.adopt(slot.topic, 0, from_ensemble, to_ensemble))


def test_without_an_expected_ensemble_it_only_reads(slot: SlotUnderTest) -> None:
    before = slot.seed(SEED)
    assert moved(slot, "", "new") == control.Adopted("old", 5_000, moved=False)
    assert slot.state() == before


def test_the_named_ensemble_hands_over_and_is_shut_out_at_once(slot: SlotUnderTest) -> None:
    # pitfall 41
    before = slot.seed(SEED)
    with pytest.raises(EnsembleMismatchError):
        slot.claim(owner=NEW)
    assert moved(slot, "old", "new") == control.Adopted("old", 5_000, moved=True)
    after = slot.state()
    assert after.owner == {"epoch": "1", "ensemble": "new", "token_base": "5000"}
    assert after.totals == {**before.totals, "adopted": 1}
    assert after.store == before.store
    with pytest.raises(EnsembleMismatchError):
        slot.claim(owner=OLD)
    with pytest.raises(FencedError):
        slot.claim()
    assert slot.claim(owner=NEW).messages


def test_another_ensemble_than_the_named_one_is_left_alone(slot: SlotUnderTest) -> None:
    before = slot.seed(SEED)
    with pytest.raises(EnsembleMismatchError, match="old"):
        moved(slot, "third", "new")
    assert slot.state() == before


@pytest.mark.parametrize("to_ensemble", ["new", ""])
def test_it_may_be_repeated(slot: SlotUnderTest, to_ensemble: str) -> None:
    slot.seed(SEED)
    moved(slot, "old", to_ensemble)
    after = slot.state()
    assert not moved(slot, "old", to_ensemble).moved
    assert slot.state() == after


def test_a_slot_that_nobody_has_owned_is_left_as_it_is(slot: SlotUnderTest) -> None:
    before = slot.seed(SlotState(store={b"a": 1}))
    assert moved(slot, "old", "new") == control.Adopted("", 0, moved=False)
    assert slot.state() == before


def test_the_way_back_to_consumers_without_zookeeper(slot: SlotUnderTest) -> None:
    slot.seed(SEED)
    assert moved(slot, "old", "").moved
    assert slot.state().owner == {"token_base": "5000"}
    assert slot.claim().messages


def test_it_works_on_a_full_redis(slot: SlotUnderTest) -> None:
    slot.seed(SEED)
    slot.client.config_set("maxmemory", 1)
    try:
        assert moved(slot, "old", "new").moved
    finally:
        slot.client.config_set("maxmemory", 0)


def test_a_topic_moves_as_a_whole_or_not_at_all(make_topic: MakeTopic, connections: Connections) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=4)
    owners = {0: OLD, 1: OLD, 2: THIRD}
    for number, owner in owners.items():
        connections.run(claim_slot(topic, number, 0, owner=owner))
    shown = Adoption(topic.name, "new", {"old": 2, "third": 1, "": 1})
    assert adopt(connections, topic, None, "new") == shown
    with pytest.raises(EnsembleMismatchError, match=r"third.*nothing was moved"):
        adopt(connections, topic, "old", "new")
    assert adopt(connections, topic, None, "new") == shown
    connections.run(control.adopt(topic, 2, "third", "old"))
    assert adopt(connections, topic, "old", "new").moved == 3
    assert adopt(connections, topic, "old", "new") == Adoption(topic.name, "new", {"new": 3, "": 1})


def test_a_token_never_falls_whatever_ensembles_come_and_go(slot: SlotUnderTest) -> None:
    """A store outside with `token >= stored` refused all that owners of a rebuilt ensemble wrote."""
    slot.seed(SlotState(store={b"%d" % number: 1 for number in range(5)}))
    bases = [slot.claim(1, owner=Owner(2**40 + 5, "old")).token_base]
    moved(slot, "old", "new")
    bases.append(slot.claim(1, owner=Owner(2, "new")).token_base)
    moved(slot, "new", "")
    assert slot.claim(1).token_base == 0
    bases.append(slot.claim(1, owner=Owner(1, "third")).token_base)
    moved(slot, "third", "old")
    bases.append(slot.claim(1, owner=Owner(2**40 + 5, "old")).token_base)
    assert bases == [0, 2**40 + 5, 2**40 + 7, 2**40 + 8]
    assert MovedOwner.of(OLD, bases[1]) == OLD
    assert (MovedOwner.of(OLD, bases[1]).fencing_token, OLD.fencing_token, NO_OWNER.fencing_token) == (
        2**40 + 5_005,
        5_000,
        None,
    )
