"""A streaming query whose driver dies between any two steps: what it has committed comes again only if leases end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rmq import TopicType
from tests.conftest import MakeSlot
from tests.models.search import BrokenPromiseError, Space, explore
from tests.models.spark_world import TICK_MS, SparkAlphabet, World


def search(
    make_slot: MakeSlot,
    contents: tuple[bytes, ...],
    *,
    limit: int = 2,
    others: bool,
    rests: bool,
    deaths: int = 1,
    to_others: bool = True,
) -> Space[World]:
    """Search all that can happen to a query.

    Raises:
        BrokenPromiseError: A message is lost, or comes again.
    """
    lease = timedelta(milliseconds=TICK_MS)
    slot = make_slot(TopicType.PRIORITY, lease=lease, max_retries=2, checked=False)
    alphabet = SparkAlphabet(
        slot, contents, limit=limit, others=others, rests=rests, deaths=deaths, to_others=to_others
    )
    space = explore(alphabet.first(), alphabet.key, alphabet.steps, alphabet.broken)
    print(f"{len(space.states)} states, {space.transitions} transitions, depth {space.depth}, {space.seconds:.1f} s")
    assert space.closed
    return space


@pytest.mark.parametrize(("limit", "deaths"), [(2, 2), (1, 1)])
def test_alone_each_row_is_committed_once(limit: int, deaths: int, make_slot: MakeSlot) -> None:
    """Whenever drivers die, and however long the next one takes."""
    space = search(make_slot, (b"a", b"b"), limit=limit, others=False, rests=True, deaths=deaths)
    finished = [key for key, world in space.states.items() if world.acked and not world.slot.store | world.slot.prepare]
    # a driver that dies no more comes to an end
    assert space.backwards(finished, lambda word: word != "the driver dies") == space.states.keys()


@pytest.mark.slow
def test_beside_a_worker_each_row_is_committed_once_while_leases_hold(make_slot: MakeSlot) -> None:
    """A driver that dies is followed by another one before a lease ends."""
    space = search(make_slot, (b"a",), others=True, rests=False)
    assert any(world.done for world in space.states.values())


@pytest.mark.slow
def test_beside_a_worker_spark_commits_each_row_once_however_long_it_rests(make_slot: MakeSlot) -> None:
    """The worker may claim what Spark has committed, lose it again, or finish it."""
    search(make_slot, (b"a",), others=True, rests=True, to_others=False)


def test_what_is_committed_comes_again_if_its_lease_ends_before_the_ack(make_slot: MakeSlot) -> None:
    """Known, and told in docs/guide/spark-stream.md and docs/internals/verification.md: a fix changes both."""
    with pytest.raises(BrokenPromiseError, match="a is committed, and comes to a worker, too") as found:
        search(make_slot, (b"a",), others=True, rests=True)
    assert found.value.path == (
        "the driver enters",
        "plans batch 1 of 1",
        "reads batch 1",
        "the sink has batch 1",
        "Spark commits batch 1",
        "the driver dies",
        "a second passes",
        "a second passes",
        "a worker claims a",
    )
