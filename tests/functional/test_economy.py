"""A worker with `idle="economy"`: what it costs while nothing happens, and that messages still arrive in time.

Time is the simulation's, the servers' commands are real: ten minutes take seconds.
"""

from __future__ import annotations

import pytest

from rmq import Fixed, FixedTimeMessage, Merge, PriorityMessage, RangeMergeMessage, StreamMessage, Sum, Topic, TopicType
from tests.simulation.idling import Idling, idling
from tests.support.core import LOOK_S, PROBE_S, PROOF_S, slot_keys

SETTLED_S = 30.0
"""After so long a worker has subscribed, proven its hints, and looked at all slots."""

MINUTES = 10
AT_ONCE_S = 0.3
"""A hint and a claim travel for some milliseconds; a listener hears hints at once."""

ONE = Topic("shop.one", TopicType.RANGE_MERGE, slots=1)
EIGHT = Topic("shop.eight", TopicType.RANGE_MERGE, slots=8)
FIXED = Topic("shop.fixed", TopicType.FIXED_TIME, slots=8)
RANKED = Topic("shop.ranked", TopicType.PRIORITY, slots=64)
STREAM = Topic("shop.stream", TopicType.STREAM, slots=4)


def settle(world: Idling, *topics: Topic, idle: str = "economy", workers: int = 1, threads: int = 1) -> None:
    for number in range(workers):
        world.worker(f"worker{number}", topics, idle, threads)
    world.run(SETTLED_S)


@pytest.mark.parametrize(
    "topics",
    [(ONE,), (EIGHT,), (RANKED,), (STREAM,), (EIGHT, FIXED, RANKED), (STREAM, ONE)],
    ids=lambda topics: "+".join(topic.name for topic in topics),
)
def test_an_idle_worker_costs_ten_commands_a_minute_at_most(topics: tuple[Topic, ...]) -> None:
    with idling() as world:
        settle(world, *topics)
        sent, carried_out = world.spent(60 * MINUTES)
    assert carried_out <= 10 * MINUTES, "with those inside of scripts"
    assert 0 < sent <= 6 * MINUTES


def test_otherwise_it_asks_about_once_a_second() -> None:
    with idling() as world:
        settle(world, EIGHT, idle="normal")
        sent, carried_out = world.spent(60 * MINUTES)
    assert sent > 50 * MINUTES
    assert carried_out > sent


def test_owners_of_slots_cost_ten_commands_a_minute_at_most() -> None:
    with idling(owned=True) as world:
        settle(world, RANKED, workers=2, threads=4)
        world.run(60.0)  # until both own slots, and nobody is asked for any
        _, carried_out = world.spent(60 * MINUTES)
        world.send(RANKED, PriorityMessage("new", 7))
        sent_s = world.world.elapsed_s
        world.run(5.0)
    assert carried_out <= 2 * 10 * MINUTES
    assert world.waited("new", sent_s) < AT_ONCE_S


@pytest.mark.parametrize("workers", [1, 3])
def test_messages_arrive_as_soon_as_they_are_due(workers: int) -> None:
    with idling() as world:
        settle(world, EIGHT, FIXED, STREAM, RANKED, workers=workers)
        world.run(100.0)
        sent_s = world.world.elapsed_s
        world.send(STREAM, StreamMessage("entry"))
        world.send(RANKED, PriorityMessage("ranked", 7))
        world.send(EIGHT, RangeMergeMessage("late", time_range_ms=400_000))
        world.send(EIGHT, RangeMergeMessage("soon", time_range_ms=200_000))
        world.send(FIXED, FixedTimeMessage("fixed", fixed_time_ms=world.world.now_ms + 300_000))
        world.run(450.0)
    due_s = {"entry": 0.0, "ranked": 0.0, "late": 400.0, "soon": 200.0, "fixed": 300.0}
    for content, after_s in due_s.items():
        assert 0.0 <= world.waited(content, sent_s + after_s) < AT_ONCE_S, content


def test_hints_that_stay_away_cost_until_the_next_proof_and_then_it_polls() -> None:
    with idling() as world:
        settle(world, EIGHT)
        world.network.lose_hints("worker0", 1_000.0)
        sent_s = world.world.elapsed_s
        world.send(EIGHT, RangeMergeMessage("first", time_range_ms=1))
        world.run(PROBE_S + PROOF_S + 2.0)
        assert world.waited("first", sent_s) <= PROBE_S + PROOF_S + 1.5
        sent_s = world.world.elapsed_s
        world.send(EIGHT, RangeMergeMessage("second", time_range_ms=1))
        world.run(10.0)
        assert world.waited("second", sent_s) <= 1.5, "now it polls"
        assert world.spent(60.0)[0] >= 60
        world.network.heal()
        world.run(SETTLED_S)
        assert world.spent(300.0)[1] <= 50, "hints are proven again"


@pytest.mark.parametrize("trouble", ["cut", "restart", "failover"])
def test_a_broken_connection_is_noticed_at_once(trouble: str) -> None:
    with idling() as world:
        settle(world, EIGHT)
        world.send(EIGHT, RangeMergeMessage("kept", time_range_ms=20_000))
        kept_s = world.world.elapsed_s + 20.0
        world.run(5.0)
        world.network.cut_all()
        if trouble != "cut":
            if trouble == "failover":
                world.server.remember()
            world.network.down = True
            world.server.restart(forgets=trouble == "failover")
            world.run(3.0)
            world.network.down = False
        world.run(2.0)
        sent_s = world.world.elapsed_s
        world.send(EIGHT, RangeMergeMessage("new", time_range_ms=1))
        world.run(30.0)
        assert world.waited("new", sent_s) <= 1.5
        assert 0.0 <= world.waited("kept", kept_s) < AT_ONCE_S
        world.run(90.0)  # the minute in which something happened is recorded
        assert world.spent(300.0)[1] <= 50 + 4, "hints are proven again; a new connection takes four commands"


def test_a_lost_hint_costs_a_minute_for_each_slot_at_most_and_then_it_polls_for_a_while() -> None:
    """As of a producer without the right to publish."""
    with idling() as world:
        settle(world, EIGHT)
        world.network.mute("producer")
        for slot_basis in "abcdefgh":
            world.send(EIGHT, RangeMergeMessage(f"quiet {slot_basis}", time_range_ms=1))
        sent_s = world.world.elapsed_s
        world.run(EIGHT.slots * LOOK_S + 5.0)
        for slot_basis in "abcdefgh":
            assert world.waited(f"quiet {slot_basis}", sent_s) <= EIGHT.slots * LOOK_S + 1.5
        sent_s = world.world.elapsed_s
        world.send(EIGHT, RangeMergeMessage("again", time_range_ms=1))
        world.run(5.0)
        assert world.waited("again", sent_s) <= 1.5
        world.run(700.0)
        assert world.spent(300.0)[1] <= 50, "nothing was missing for ten minutes"


def test_what_a_dead_worker_held_comes_when_its_lease_ends() -> None:
    with idling() as world:
        settle(world, ONE, workers=2)
        began: list[str] = []

        def hang(process: str) -> None:
            began.append(process)
            world.world.sleep(10_000.0)

        world.hang = hang
        world.send(ONE, RangeMergeMessage("held", time_range_ms=1))
        world.run(10.0)
        sent_s = world.world.elapsed_s
        [holder] = began
        world.hang = None
        world.world.kill(next(each for each in world.world.processes if each.name == holder))
        world.run(ONE.lease_s + 5.0)
        assert world.waited("held", sent_s) <= ONE.lease_s + AT_ONCE_S


@pytest.mark.parametrize(("topics", "threads", "most"), [((EIGHT,), 2, 100), ((EIGHT, RANKED), 4, 300)])
def test_an_idle_process_wakes_up_seldom(topics: tuple[Topic, ...], threads: int, most: int) -> None:
    with idling() as world:
        settle(world, *topics, threads=threads)
        before = world.world.steps
        world.run(60.0 * MINUTES)
    assert 0 < world.world.steps - before <= most * MINUTES


def test_what_becomes_due_while_a_thread_is_busy_is_handled_by_another() -> None:
    with idling() as world:
        world.hang = lambda name: world.world.sleep(60.0)
        settle(world, ONE, threads=2)
        sent_s = world.world.elapsed_s
        world.send(ONE, RangeMergeMessage("later", time_range_ms=10_000))
        world.run(5.0)
        world.send(ONE, RangeMergeMessage("first", time_range_ms=1))
        world.run(100.0)
    assert world.waited("first", sent_s + 5.0) < 60.0 + AT_ONCE_S
    assert world.waited("later", sent_s + 10.0) < 60.0 + AT_ONCE_S, "not when the first thread has ended, nor wakes"


@pytest.mark.parametrize("phase", range(4))
def test_what_waits_behind_a_slow_handler_goes_to_idle_workers(phase: int) -> None:
    """The watcher slept on where it looked while the claim was under way, which was in no place that it looks at."""
    fixed, hung = Topic("shop.waiting", TopicType.FIXED_TIME, slots=1), list[str]()

    def hang(name: str) -> None:
        if not hung:
            hung.append(name)
            world.world.sleep(100.0)

    with idling() as world:
        settle(world, fixed, workers=2)
        for number in range(30):  # quick ones: then many are claimed at once
            world.send(
                fixed, FixedTimeMessage(f"quick{number}", fixed_time_ms=world.world.now_ms + 1_000 + 10 * number)
            )
        world.run(40.0 + 1.7 * phase)
        world.hang = hang
        due_s = world.world.elapsed_s + 5.0
        for number in range(20):
            world.send(fixed, FixedTimeMessage(f"m{number}", fixed_time_ms=world.world.now_ms + 5_000))
        world.run(150.0)
    *others, _ = sorted(world.waited(f"m{number}", due_s) for number in range(20))
    assert max(others) < 1.5


@pytest.mark.parametrize("owned", [False, True])
def test_an_idle_process_stops_at_once(owned: bool) -> None:
    with idling(owned=owned) as world:
        settle(world, EIGHT, threads=2)
        world.run(100.0)
        [client] = world.clients
        ended: list[float] = []

        def stop() -> None:
            client.stop(drain_s=30.0)
            ended.append(world.world.elapsed_s)

        stop_s = world.world.elapsed_s
        world.world.spawn(world.world.processes[0], stop, "stop")
        world.run(40.0)
    assert len(ended) == 1
    assert ended[0] - stop_s < 1.0


def test_keys_expire_in_virtual_time() -> None:
    topic = Topic("shop.sums", TopicType.RANGE_MERGE, slots=1, merge=Merge(Sum(), window=Fixed("1s")))
    marks = slot_keys(topic.name, 0).marks
    with idling() as world:
        settle(world, topic)
        world.send(topic, RangeMergeMessage("first", body=1))
        world.run(7_000.0)
        assert world.server.call("EXISTS", marks) == 1
        world.run(300.0)
        assert world.server.call("EXISTS", marks) == 0
