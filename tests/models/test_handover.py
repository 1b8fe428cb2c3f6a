"""The handover of a slot in all states: what holds without a failover, and what a failover that forgets may break."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq import Owner, TopicType
from rmq.errors import FencedError
from tests.conftest import MakeTopic
from tests.models.handover import (
    Called,
    Failover,
    Handover,
    key_of,
    let_in_late,
    out_of_order,
    steps,
    two_at_once,
)
from tests.models.planted import planted
from tests.models.search import BrokenPromiseError, Space, explore
from tests.support.core import ScriptLibrary
from tests.support.slots import SlotState, SlotUnderTest, dump_keys, scripts_with_fake_clock

MODEL = Path(__file__).with_name("handover.pml")
Promise = Callable[[Handover], str | None]
NAMES = ("A", "B")


def search(failover: Failover, *promises: Promise, most: int = 2, calls: set[Called] | None = None) -> Space[Handover]:
    """Search all states.

    Args:
        failover: What a failover may forget.
        promises: Those that must hold.
        most: Most ownerships.
        calls: Takes all calls of scripts.
    """

    def following(state: Handover) -> Iterator[tuple[str, Handover]]:
        for word, after in steps(state, failover):
            if calls is not None and after.called is not None:
                calls.add(after.called)
            yield word, key_of(after)

    def broken(state: Handover) -> str | None:
        return next((what for promise in promises if (what := promise(state))), None)

    space = explore(Handover(most=most), key_of, following, broken)
    assert space.closed
    print(f"{failover.value}: {len(space.states)} states, {space.transitions} transitions, depth {space.depth}")
    return space


def test_without_a_failover_all_promises_hold() -> None:
    """As many states as Spin finds: both models are the same."""
    space = search(Failover.NONE, let_in_late, two_at_once, out_of_order, most=3)
    assert len(space.states) == 22_690
    # while there is an epoch to give, a slot can be worked on again, whatever has happened
    begun = [key for key, state in space.states.items() if any(worker.handler for worker in state.workers)]
    can_go_on = space.backwards(begun, lambda word: "stands still" not in word)
    assert {key for key, state in space.states.items() if state.given < state.most} <= can_go_on


def test_a_keeper_that_forgets_breaks_nothing_while_the_slot_remembers() -> None:
    """Owners in Redis: an earlier owner's node is there again, or none, and two workers believe to own the slot."""
    space = search(Failover.NODES, let_in_late, two_at_once, out_of_order)
    for rare in ("worker A finds its node again", "worker A owns the slot again with epoch 3"):
        assert any(word == rare for state in space.states.values() for word, _ in steps(state, Failover.NODES)), rare
    begun = [key for key, state in space.states.items() if any(worker.handler for worker in state.workers)]
    can_go_on = space.backwards(begun, lambda word: "stands still" not in word)
    assert {key for key, state in space.states.items() if state.given < state.most} <= can_go_on


@pytest.mark.parametrize(
    ("failover", "promise", "path"),
    [
        (
            Failover.CLAIMS,
            two_at_once,
            """worker A gets the slot with epoch 1
            worker A tells Redis epoch 1
            worker A finds nothing in flight
            worker A sends a claim with epoch 1
            the replica gets all that was written
            worker A's claim with epoch 1 arrives
            worker A's handler begins
            worker A hands the slot over
            worker B gets the slot with epoch 2
            Redis fails over to its replica
            worker B tells Redis epoch 2
            worker B finds nothing in flight
            worker B sends a claim with epoch 2
            worker B's claim with epoch 2 arrives
            worker B's handler begins""",
        ),
        (
            Failover.EPOCH,
            let_in_late,
            """worker A gets the slot with epoch 1
            worker A tells Redis epoch 1
            worker A finds nothing in flight
            worker A sends a claim with epoch 1
            worker A hands the slot over
            worker A gets the slot with epoch 2
            worker A tells Redis epoch 2
            Redis fails over to its replica
            worker A's claim with epoch 1 arrives""",
        ),
        (
            Failover.EPOCH,
            two_at_once,
            """worker A gets the slot with epoch 1
            worker A tells Redis epoch 1
            worker A finds nothing in flight
            worker A sends a claim with epoch 1
            worker A's claim with epoch 1 arrives
            worker A's handler begins
            worker A hands the slot over
            worker B gets the slot with epoch 2
            worker B tells Redis epoch 2
            Redis fails over to its replica
            worker B finds nothing in flight
            worker B sends a claim with epoch 2
            worker B's claim with epoch 2 arrives
            worker B's handler begins""",
        ),
    ],
    ids=["claims-exclusion", "epoch-fence", "epoch-exclusion"],
)
def test_what_a_failover_that_forgets_breaks(failover: Failover, promise: Promise, path: str) -> None:
    """Known, and told in docs/operate/ownership.md: the shortest ways. Whoever mends one changes the page, too."""
    with pytest.raises(BrokenPromiseError) as found:
        search(failover, promise)
    assert found.value.path == tuple(line.strip() for line in path.splitlines())


# the same on the real scripts


def carried_out(slot: SlotUnderTest, called: Called) -> str | None:
    """Carry out a call on the scripts; return how they differ from the model."""
    before, epoch, content = called.before, called.epoch, NAMES[called.worker].encode()
    slot.client.delete(*dump_keys(slot.keys))
    held = {name.encode(): there for name, there in zip(NAMES, before.held, strict=True)}
    claims = {name: slot.claim_score(index, ago_s=1) for index, name in enumerate(held) if held[name]}
    owner = {"epoch": str(before.epoch), "ensemble": "zk"} if before.epoch else {}
    seeded = slot.seed(SlotState(store={b"next": 5_000}, prepare=claims, owner=owner))
    try:
        match called.verb:
            case "ack":
                slot.ack((content, claims[content]), owner=Owner(epoch, "zk"))
            case verb:
                slot.claim(int(verb == "claim"), owner=Owner(epoch, "zk"))
    except FencedError:
        return None if called.after is None and slot.state() == seeded else f"{called} is refused"
    if called.after is None:
        return f"{called} is let in"
    state = slot.state()
    flying = state.prepare.keys()
    if state.owner != {"epoch": str(called.after.epoch), "ensemble": "zk"}:
        return f"{called} leaves {state.owner}"
    wanted = claims.keys() | {b"next"} if called.verb == "claim" else claims.keys()
    wanted = wanted - {content} if called.verb == "ack" else wanted
    return None if flying == wanted else f"{called} leaves {flying} in flight"


def differences(redis_url: str, make_topic: MakeTopic, scripts: ScriptLibrary) -> list[str]:
    calls: set[Called] = set()
    search(Failover.NONE, calls=calls)
    assert len(calls) > 20
    topic = make_topic(TopicType.PRIORITY, ties="any", checked=False)
    slot = SlotUnderTest(redis_url, topic, scripts)
    try:
        found = [carried_out(slot, called) for called in sorted(calls, key=repr)]
    finally:
        slot.close()
    return [difference for difference in found if difference]


def test_the_fence_of_the_scripts_is_that_of_the_model(redis_url: str, make_topic: MakeTopic) -> None:
    assert differences(redis_url, make_topic, scripts_with_fake_clock()) == []


@pytest.mark.parametrize("bug", ["the fence is not checked", "a newer epoch is not stored"])
def test_a_bug_in_the_fence_is_found(bug: str, redis_url: str, make_topic: MakeTopic) -> None:
    assert differences(redis_url, make_topic, planted(bug))


# the same in Spin


@pytest.mark.parametrize(
    ("forgets", "promises", "most", "states", "errors"),
    [
        (0, 7, 3, 22_690, 0),
        (1, 7, 3, 232_602, 0),
        (2, 5, 2, 36_138, 0),
        (2, 2, 2, None, 1),
        (3, 4, 2, 59_856, 0),
        (3, 1, 2, None, 1),
        (3, 2, 2, None, 1),
    ],
)
def test_spin_agrees(forgets: int, promises: int, most: int, states: int | None, errors: int, tmp_path: Path) -> None:
    missing = [program for program in ("spin", "gcc") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed: Debian's packages spin, gcc and libc6-dev")
    settings = [f"-DFORGETS={forgets}", f"-DPROMISES={promises}", f"-DEPOCHS={most}"]
    command = ["spin", *settings, "-run", "-DSAFETY", "-DBFS", str(MODEL)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    counted = re.search(r"errors: (\d+)\s+(\d+) states, stored", ran.stdout)
    assert counted, ran.stdout + ran.stderr
    assert int(counted[1]) == errors, ran.stdout
    if states is not None:
        assert int(counted[2]) == states
