"""All that can become of a slot: each promise in each state, and each call on the real scripts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from time import perf_counter

import pytest
import redis

from tests.models.planted import planted
from tests.models.replay import differences
from tests.models.search import BrokenPromiseError, Space, explore
from tests.models.slot_world import SlotAlphabet, World
from tests.models.topics import TYPES, search, topic_of
from tests.support.slots import scripts_with_fake_clock

DEPTH = {"RANGE_MERGE": 7, "FIXED_TIME": 7, "PRIORITY-any": 5, "PRIORITY-oldest": 5}
"""How many steps the search with two contents goes: about the same number of states for each type."""

PLANTED = {
    "ack does not compare": "RANGE_MERGE",
    "nack does not compare": "RANGE_MERGE",
    "a lease ends a millisecond early": "FIXED_TIME",
    "a rollback overwrites a fresh copy": "FIXED_TIME",
    "retries are not counted": "PRIORITY-any",
    "a delayed retry comes early": "PRIORITY-oldest",
    "two claims have one stamp": "RANGE_MERGE",
    "prepare is not written": "RANGE_MERGE",
}
"""Planted bugs, and the type of topic whose search is asked for them."""


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    """Redis, in a database of these tests' own."""
    with redis.Redis.from_url(f"{redis_url}?db=2") as client:
        yield client
        client.flushdb()


def is_fair(word: str) -> bool:
    """Whether this is what a worker does that makes no mistakes, with a network that loses nothing."""
    return word in ("a second passes", "a sweep") or (
        "lost" not in word and word.startswith(("consumer 1 claims", "consumer 1: ack"))
    )


def empty(world: World) -> bool:
    slot = world.model.slot
    return not (slot.store or slot.prepare or slot.retry)


def report(name: str, space: Space[World], calls: int, seconds: float) -> None:
    print(
        f"{name}: {len(space.states)} states, {space.transitions} transitions, depth {space.depth},"
        f" {space.seconds:.1f} s; {calls} calls replayed, {seconds:.1f} s"
    )


@pytest.mark.parametrize("name", TYPES)
def test_one_content_in_all_states(name: str, client: redis.Redis) -> None:
    """The search ends by itself: there are no other states. From each a good worker can empty the slot."""
    alphabet, space = search(name, (b"a",))
    assert space.closed
    done = [key for key, world in space.states.items() if empty(world)]
    assert space.backwards(done, is_fair) == space.states.keys()
    begun_s = perf_counter()
    found = list(islice(differences(client, scripts_with_fake_clock(), alphabet.played.values()), 3))
    report(name, space, len(alphabet.played), perf_counter() - begun_s)
    assert found == []
    assert len(space.states) > 1_000
    assert len(alphabet.played) > 1_300


@pytest.mark.parametrize("name", TYPES)
def test_two_contents_in_all_short_histories(name: str, client: redis.Redis) -> None:
    alphabet, space = search(name, (b"a", b"b"), DEPTH[name])
    begun_s = perf_counter()
    found = list(islice(differences(client, scripts_with_fake_clock(), alphabet.played.values()), 3))
    report(name, space, len(alphabet.played), perf_counter() - begun_s)
    assert found == []
    assert len(space.states) > 1_000
    assert len(alphabet.played) > 1_000


# what the search would notice


@pytest.mark.parametrize("bug", PLANTED)
def test_a_bug_in_a_script_is_found(bug: str, client: redis.Redis) -> None:
    alphabet, _ = search(PLANTED[bug], (b"a",), 9)
    found = next(differences(client, planted(bug), alphabet.played.values()), None)
    assert found is not None
    print(found)


class Forgetful(SlotAlphabet):
    """A slot whose model makes a mistake of its own: then the promises must be found broken."""

    def __init__(self, mistake: str) -> None:
        super().__init__(topic_of("RANGE_MERGE"), (b"a",))
        self._mistake = mistake

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        for word, after in super().steps(world):
            slot = after.model.slot
            if self._mistake == "a sweep loses what it puts back" and word == "a sweep" and world.model.slot.prepare:
                for content in world.model.slot.prepare.keys() - slot.prepare.keys():
                    slot.store.pop(content, None)
            if self._mistake == "a sweep ends leases that run" and word == "a sweep":
                for content in list(slot.prepare):
                    slot.store[content] = slot.prepare.pop(content) % 1000
            if self._mistake == "an ack counts twice" and ": ack" in word:
                after.model.totals["acked"] += 1
            yield word, after


@pytest.mark.parametrize(
    ("mistake", "promise", "steps"),
    [
        ("a sweep loses what it puts back", "is nowhere", 7),
        ("a sweep ends leases that run", "taken from its consumer while its lease runs", 5),
        ("an ack counts twice", "the accounts are wrong", 5),
    ],
)
def test_a_broken_promise_is_found_by_the_shortest_way(mistake: str, promise: str, steps: int) -> None:
    wrong = Forgetful(mistake)
    with pytest.raises(BrokenPromiseError, match=promise) as found:
        explore(wrong.first(), wrong.key, wrong.steps, wrong.broken, 10)
    assert len(found.value.path) == steps, found.value
