"""Settling several deliveries at once: what is refused changes nothing, and what is named twice is settled once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rmq import Consumer, Delivery, PriorityMessage, RmqClient, StreamMessage, TopicType
from rmq.errors import AlreadySettledError, InvalidValueError, ScriptFailedError
from tests.conftest import MakeTopic
from tests.support.clients import stats_of
from tests.support.core import Connections, SettleReply, parse_url
from tests.support.sides import SIDES

both_sides = pytest.mark.parametrize("side", SIDES, indirect=True)


def claimed(client: RmqClient, consumer: Consumer) -> list[Delivery]:
    client.producer(consumer.topic).send_many(PriorityMessage(f"m{number}", 1_000) for number in range(8))
    found = consumer.poll()
    assert len(found) == 8
    return found


@both_sides
@pytest.mark.parametrize("settle", ["ack", "release"])
def test_one_that_is_named_twice_is_settled_once(client: RmqClient, make_topic: MakeTopic, settle: str) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    with client.consumer(topic) as consumer:
        found = claimed(client, consumer)
        assert consumer.extend([*found, found[0]]) == []
        assert getattr(consumer, settle)([*found, *found, found[3]]) == []
    stats = stats_of(client, topic)
    assert (stats.in_flight, stats.total("acked" if settle == "ack" else "released")) == (0, 8)


@both_sides
@pytest.mark.parametrize("settle", ["ack", "release"])
def test_what_is_refused_changes_nothing(client: RmqClient, make_topic: MakeTopic, settle: str) -> None:
    topic, other = make_topic(TopicType.PRIORITY, slots=2), make_topic(TopicType.PRIORITY, slots=2)
    with client.consumer(topic) as consumer, client.consumer(other) as elsewhere:
        first, *found = claimed(client, consumer)
        foreign = claimed(client, elsewhere)
        assert first.ack()
        refused: list[tuple[type[Exception], Iterable[Any]]] = [
            (AlreadySettledError, [*found, first]),
            (InvalidValueError, [*found, foreign[0]]),
        ]
        for error, wrong in refused:
            with pytest.raises(error):
                getattr(consumer, settle)(wrong)
            assert [delivery.outcome for delivery in (*found, *foreign)] == [None] * 15
        assert getattr(consumer, settle)(found) == []
        assert elsewhere.ack(foreign) == []
    assert stats_of(client, topic).in_flight == 0


@both_sides
def test_a_delivery_of_another_group_is_refused(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.STREAM, checked=False)
    client.producer(topic).send(StreamMessage("a"))
    with client.consumer(topic, group="g", start="all") as one, client.consumer(topic, group="h", start="all") as two:
        [mine], [theirs] = one.poll(), two.poll()
        with pytest.raises(InvalidValueError, match="group g"):
            one.ack([mine, theirs])
        assert one.ack([mine, mine]) == []
        assert two.ack([theirs]) == []


@pytest.mark.parametrize("sent", [False, True])
def test_what_was_interrupted_is_settled_as_far_as_anybody_knows_once_it_was_sent(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8)
    with client.consumer(topic) as consumer:
        found = claimed(client, consumer)
        with monkeypatch.context() as patched:
            for name in ("run_many", "run_shared") if sent else ("settle_call", "claim_call"):
                patched.setattr(Connections if sent else consumer._broker, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.ack(found)
        assert {delivery.outcome is None for delivery in found} == {not sent}
        if sent:  # whether they were carried out is not known: here they were not
            for delivery in found:
                delivery.claim.reopen([delivery.row])
        assert consumer.ack(found) == []


@pytest.mark.parametrize("settle", ["ack", "release"])
def test_outcomes_of_many_slots_share_a_call(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, settle: str
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8)
    sent: list[str] = []
    run = Connections.run_shared
    with client.consumer(topic) as consumer:
        found = claimed(client, consumer)
        assert len({delivery.slot for delivery in found}) > 2
        with monkeypatch.context() as patched:
            patched.setattr(
                Connections,
                "run_shared",
                lambda self, call, *more: (sent.append(call.script), run(self, call, *more))[1],
            )
            assert getattr(consumer, settle)(found) == []
    assert sent == ["settle"]
    stats = stats_of(client, topic)
    assert (stats.in_flight, stats.total("acked") + stats.total("released")) == (0, 8)


def test_a_slot_without_rights_keeps_no_other_one_from_being_settled(
    client: RmqClient, make_topic: MakeTopic, redis_client: Any, redis_url: str
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8)
    with client.consumer(topic) as consumer:
        found = claimed(client, consumer)
        closed = found[0].slot
        keys = [f"~*{{{topic.name}_{slot}}}" for slot in range(8) if slot != closed]
        stores = [f"~{topic.name}_{slot}" for slot in range(8) if slot != closed]
        redis_client.execute_command("ACL", "SETUSER", "few", "reset", "on", ">pw", "+@all", "&*", *keys, *stores)
        connections = Connections(parse_url(redis_url.replace("unix://", "unix://few:pw@", 1)))
        try:
            with pytest.raises(ScriptFailedError):
                Consumer(connections, topic).ack(found)
        finally:
            connections.close()
            redis_client.execute_command("ACL", "DELUSER", "few")
        assert {delivery.slot for delivery in found if delivery.outcome is None} == {closed}
        assert stats_of(client, topic).total("acked") == len([each for each in found if each.slot != closed])
        assert consumer.ack([delivery for delivery in found if delivery.slot == closed]) == []


def test_a_refused_slot_is_open_again_although_another_one_takes_a_second_call(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    with client.consumer(topic) as consumer:
        found = claimed(client, consumer)
        refused, other = dict.fromkeys(delivery.slot for delivery in found)
        with monkeypatch.context() as patched:

            def refuse(*_: object) -> list[object]:
                patched.undo()
                score = next(delivery.claim_score for delivery in found if delivery.slot == other)
                return [ScriptFailedError("no right"), SettleReply(unmatched=(score,))]

            patched.setattr(consumer, "_replies", refuse)
            with pytest.raises(ScriptFailedError):
                consumer.ack(found)
        left = [delivery for delivery in found if delivery.outcome is None]
        assert {delivery.slot for delivery in left} == {refused}
        assert consumer.ack(left) == []
    assert stats_of(client, topic).total("acked") == 8


def interrupted(*_: object) -> Callable[[], None]:
    raise KeyboardInterrupt
