"""A worker with many listeners: what it costs while nothing happens, and how late a message is whose hint got lost.

Time is the simulation's, the servers' commands are real.
"""

from __future__ import annotations

import pytest

from rmq import PriorityMessage, RangeMergeMessage, StreamMessage, Topic, TopicType
from tests.simulation.idling import Idling, idling

SETTLED_S = 30.0
LATEST_S = 10.0
"""No message waits longer, whatever got lost on its way to the worker."""

TOPICS = [Topic(f"shop.t{number}", TopicType.PRIORITY, slots=8) for number in range(40)]
STREAM = Topic("shop.stream", TopicType.STREAM, slots=8)
TIMED = [Topic(f"shop.r{number}", TopicType.RANGE_MERGE, slots=8) for number in range(40)]
LARGE = Topic("shop.large", TopicType.RANGE_MERGE, slots=512)


def settle(world: Idling, *topics: Topic) -> None:
    world.worker("worker", topics, "normal")
    world.run(SETTLED_S)


@pytest.mark.parametrize("topics", [TOPICS[:1], TOPICS, [*TOPICS, STREAM]], ids=len)
def test_a_worker_costs_two_script_calls_a_second_whatever_its_topics(topics: list[Topic]) -> None:
    with idling() as world:
        settle(world, *topics)
        seconds = sorted(world.spent_on("evalsha", 1.0) for _ in range(42))[:40]  # but for the minute's record
    assert sum(seconds) <= 2 * 40
    assert max(seconds) <= 4, "in shares"
    assert sum(seconds) >= 40 / 8, "each slot is looked at"


def test_all_slots_are_looked_at_every_eight_seconds() -> None:
    """A slot costs one ZRANGEBYSCORE; so does it in the minute's record."""
    with idling() as world:
        settle(world, *TIMED, LARGE)
        number = world.spent_on("zrangebyscore", 32.0)
    assert 4 * (40 * 8 + 512) <= number <= (5 + 1) * (40 * 8 + 512)


@pytest.mark.parametrize("lost", ["hints", "publish"])
def test_no_message_is_later_than_ten_seconds(lost: str) -> None:
    with idling() as world:
        settle(world, *TOPICS, STREAM, LARGE)
        if lost == "hints":  # the connection is open, and nothing arrives
            world.network.lose_hints("worker", 1_000.0)
        else:
            world.network.mute("producer")
        sent_s: dict[str, float] = {}
        for number, topic in enumerate(TOPICS[::4]):
            sent_s[topic.name] = world.world.elapsed_s
            world.send(topic, PriorityMessage(topic.name, 5))
            world.run(0.3 * (number % 3))
        sent_s |= dict.fromkeys(("entry", "timed"), world.world.elapsed_s)
        world.send(STREAM, StreamMessage("entry"))
        world.send(LARGE, RangeMergeMessage("timed", time_range_ms=1))
        world.run(2.5 * LATEST_S)
        late_s = {content: world.waited(content, at_s) for content, at_s in sent_s.items()}
        assert max(late_s.values()) <= LATEST_S, late_s
        again_s, latest = world.world.elapsed_s, max(TOPICS[::4], key=lambda topic: late_s[topic.name])
        world.send(latest, PriorityMessage("again", 5))
        world.run(5.0)
        assert world.waited("again", again_s) <= 1.5, "now it polls this topic each second"


def test_a_busy_topic_has_no_influence_on_the_others() -> None:
    with idling() as world:
        settle(world, *TOPICS)
        for number in range(50):
            world.send(TOPICS[0], PriorityMessage(f"busy {number}", 5))
            world.run(0.1)
        sent_s = world.world.elapsed_s
        world.send(TOPICS[1], PriorityMessage("other", 5))
        world.run(3.0)
        assert len(world.arrived) == 51
        assert world.waited("other", sent_s) < 0.3
