"""What is put into a script call, and what its reply turns into."""

from __future__ import annotations

from typing import Any

import pytest

from rmq import ControlResult, DeadMessage, Owner, Redriven, SendResult, Topic, TopicType
from rmq._admin import control as steering
from rmq._admin import figures
from rmq._admin.calls import dead, viewing
from rmq._admin.messages import Place
from rmq._broker import claims as claiming
from rmq._broker import sends as sending
from rmq._broker.claims import SETTLE_ONLY, ClaimPart, Nack, Outcomes
from rmq._model.batches import EncodedMessage
from rmq._model.replies import ClaimReply, ExtendReply, SettleReply
from rmq._model.scores import ages_for
from rmq._transport import refusals
from rmq.errors import (
    BacklogFullError,
    EnsembleMismatchError,
    FencedError,
    FixedTimePassedError,
    MemoryFullError,
    RmqError,
    TopicDeletedError,
)
from tests.support.claims import Claimed
from tests.support.one_slot import claim_slot, settle_slot

MERGE, FIXED = Topic("t", TopicType.RANGE_MERGE, slots=4), Topic("t", TopicType.FIXED_TIME, slots=4)
PRIORITY, AGED = Topic("t", TopicType.PRIORITY, slots=4, ties="any"), Topic("t", TopicType.PRIORITY, slots=4)
NOW_MS = 1_700_000_000_123
T0 = 1_790_000_000_050
A, B = EncodedMessage(1, b"a", 50, b"body"), EncodedMessage(1, b"b", 40, None)


@pytest.mark.parametrize(
    ("topic", "unit", "ages", "least"),
    [
        (MERGE, "after", "", (40, 50)),
        (PRIORITY, "priority", "", (0, 0)),
        (AGED, "priority", f"{2**33} 100 -1", (0, 0)),
        (FIXED, "at", "", (40, 50)),
    ],
)
def test_a_send(topic: Topic, unit: str, ages: str, least: tuple[int, int]) -> None:
    call = sending.send_calls(topic.changed(max_backlog=10))(1, [B, A], detailed=True)
    assert call.script == "send"
    assert call.keys == ("t_1", "prepare{t_1}", "body{t_1}", "meta{t_1}", "wake{t_1}")
    messages = [40, b"b", 50, b"a", 2, b"body"]
    assert list(call.args) == ["PUBLISH", 1, unit, 3, ages, "", "", 9, 2, 2, least[0], *messages]
    assert call.parse([NOW_MS, [1, b"01"]]) == SendResult(1, 1, (False, True))
    one = sending.send_calls(topic)(1, [A])
    assert list(one.args) == ["PUBLISH", 0, unit, 0, ages, "", "", 5, 1, 50, b"a", 1, b"body"]
    assert one.parse([NOW_MS, [1, b"1"]]) == SendResult(1, 0)
    shared = sending.send_calls(topic)(1, [A, B._replace(value=50), A])
    messages = [50, b"a", b"b", b"a", 1, b"body", 3, b"body"]
    assert list(shared.args) == ["PUBLISH", 0, unit, 0, ages, "", "", 11, 3, 1, least[1], *messages]


def test_a_sender_makes_scores_with_ages_once_it_knows_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = 70.0
    monkeypatch.setattr(sending, "monotonic_s", lambda: clock_s)
    send, ages = sending.send_calls(AGED), ages_for(AGED.max_priority)
    age, values, messages = 4, 9, slice(11, None)
    head = f"{ages.scale} {ages.unit_ms} "
    first = send(1, [A, B])
    assert (first.args[age], first.args[messages]) == (f"{head}-1", [50, b"a", 40, b"b", 1, b"body"])
    first.parse([T0, [2, b""]])  # carried out at T0, and built when the clock said 70 s
    clock_s += 0.25
    later = T0 + 250
    made = ages.aged([50, 40], ages.mark_at(later))
    assert [ages.sent_ms(score) for score in made] == [later - later % 100] * 2
    second = send(1, [A, B])
    assert (second.args[age], second.args[messages]) == (
        f"{head}{ages.mark_at(later)}",
        [made[0], b"a", made[1], b"b", 1, b"body"],
    )
    alike = send(1, [A, A])
    assert (alike.args[values], alike.args[messages]) == (1, [made[0], b"a", b"a", 1, b"body", 2, b"body"])
    assert send(1, [B]).args[age:] == [f"{head}-1", "", "", 3, 1, 40, b"b"]


def test_a_claim() -> None:
    call = claim_slot(
        PRIORITY,
        1,
        10,
        owner=Owner(7, "zk"),
        start=4,
        outcomes=Outcomes(
            acks=[(b"a", 5), (b"b", 5), (b"c", 6)], nacks=[Nack(b"d", 5, "bury", 0, "E", "m")], whole=[(8, 2)]
        ),
    )
    bounds = [256, 30 * 86_400_000, 250_000, 4 * 1_048_576, "PUBLISH"]
    nacks = [1, b"d", 5, "bury", 0, "E", "m"]
    settled = [*nacks, 2, 5, 2, b"a", b"b", 6, 1, b"c", 1, 8, 2]
    assert list(call.args) == [9, 60_000, 16, "any", *bounds, 4 + len(settled), 7, "zk", 10, 4, *settled]
    assert list(claim_slot(FIXED, 0, 0).args)[3:] == ["low", *bounds, 7, 0, "", 0, 0, 0, 0, 0]


def test_a_claim_from_several_slots() -> None:
    topic = FIXED.changed(ttl="1m")
    parts = [ClaimPart(0, 10, Outcomes([(b"a", 5)]), Owner(7, "zk"), 4), ClaimPart(1, SETTLE_ONLY)]
    call = claiming.queue_claims(topic)(parts, 1_000)
    first, second = [11, 7, "zk", 10, 4, 0, 1, 5, 1, b"a", 0, 60_000], [8, 0, "", -1, 0, 0, 0, 0, 60_000]
    assert list(call.args)[7:] == [1_000, "PUBLISH", *first, *second]
    assert call.keys == sum((claim_slot(topic, slot, 1).keys for slot in range(2)), ())


def test_a_claims_reply() -> None:
    def parse(reply: list[Any]) -> ClaimReply[Any]:
        return claim_slot(PRIORITY, 1, 10).parse([reply])

    reply = [
        b"1700000000999",
        b"5",
        b"4",
        b"3",
        [b"x"],
        [b"a", b"50", b"b", b"16", b"c", b"1"],
        [None, b"1", None],
        [b"8"],
        b"1700000001002",
        b"",
    ]
    assert parse(reply) == ClaimReply(
        1_700_000_000_999,
        5,
        4,
        3,
        (b"x",),
        (
            Claimed(b"a", 50, 1_700_000_001_002_016, None),
            Claimed(b"b", 16, 1_700_000_001_002_015, b"1"),
            Claimed(b"c", 1, 1_700_000_001_002_000, None),
        ),
        (8,),
    )
    without_bodies = parse([b"1000", b"0", b"0", b"0", [], [b"a", b"9007199254740991"], [], [], b"1000", b""])
    assert without_bodies.messages == (Claimed(b"a", 2**53 - 1, 1_000_016, None),)
    of_one_score = parse([b"1000", b"0", b"0", b"0", [], [b"a", b"b"], [], [], b"1000", b"9007199254740991"])
    assert of_one_score.messages == tuple(Claimed(content, 2**53 - 1, 1_000_016, None) for content in (b"a", b"b"))


def test_acks_nacks_and_extends() -> None:
    shared = [16, 30 * 86_400_000, 250_000, "PUBLISH"]
    acks = settle_slot(FIXED, 0, Outcomes([(b"a", 5), (b"b", 6), (b"c", 5)]), Owner(7, "zk"))
    own = [7, "zk", 0, 3, 5, 1, b"a", 6, 1, b"b", 5, 1, b"c", 0]
    assert list(acks.args) == [*shared, len(own) + 1, 6, *own]
    assert acks.parse(1) == SettleReply()
    assert acks.parse([[b"a"], [b"5"], 0]) == SettleReply((b"a",), (5,))
    nack = settle_slot(FIXED, 0, Outcomes(nacks=[Nack(b"a", 5, "retry", 9)], whole=[(7, 2)]))
    own = [0, "", 1, b"a", 5, "retry", 9, "", "", 0, 1, 7, 2]
    assert list(nack.args) == [*shared, len(own) + 1, 10, *own]
    assert (acks.keys, nack.keys[:6], nack.keys[5]) == (nack.keys[:6], acks.keys, "wake{t_0}")
    extend = claiming.extend(FIXED, 0, [(b"a", 5_003), (b"b", 6_016)])
    assert list(extend.args) == [0, "", 60_000, 5_003, b"a", 6_016, b"b"]
    assert extend.parse([b"9999", b"10", b"10001"]) == ExtendReply(9_999, (10_001_003, None))


def test_control_by_content() -> None:
    cancel = steering.cancel(FIXED, 0, [b"a", b"b", b"c"])
    assert cancel.parse([b"done", b"in_flight", b"absent"]) == list(ControlResult)
    reschedule = steering.reschedule(FIXED, 0, [b"a"], ("at", 5))
    assert list(reschedule.args) == ["at", 5, 1, 1, "PUBLISH", "", "reschedule", b"a"]


def test_the_dead() -> None:
    redrive = dead.redrive(FIXED, 0, ("at", 5), overwrite=True, contents=[b"a"])
    assert list(redrive.args) == ["at", 5, 1, 1, 1, "PUBLISH", "", 0, b"a"]
    seen = dead.redrive(FIXED, 0, ("at", 5), overwrite=True, contents=[b"a"], died_ms=[9])
    assert list(seen.args)[7:] == [1, b"a", 9]
    assert redrive.parse([b"done", b"merged", b"absent"]) == list(Redriven)
    assert list(dead.purge_dead(FIXED, 0, [b"a"], "me").args) == ["me", b"a"]
    reason = b'{"type":"E","message":"\xff","attempts":3,"first_ms":"1","last_ms":"2"}'
    page = dead.list_dead(FIXED, 0, 0, 9).parse([[b"a", b"5", b"b", b"6"], [reason, None], []])
    assert page == [
        DeadMessage("t", 0, b"a", None, 5, "E", "\ufffd", 3, 1, 2),
        DeadMessage("t", 0, b"b", None, 6, "", "", 0, 6, 6),
    ]


@pytest.mark.parametrize(
    ("place", "key", "order"),
    [("store", "t_0", "high"), ("prepare", "prepare{t_0}", "low"), ("retry", "retry{t_0}", "low")],
)
def test_peeking(place: Place, key: str, order: str) -> None:
    call = viewing.peek(PRIORITY, 0, place, 3, 4)
    assert (call.keys, list(call.args)) == ((key, "body{t_0}"), [order, 3, 4])
    for bodies, body, more in (([], None, b"0"), ([b"1"], b"1", b"1")):
        [message], left = call.parse([b"9", [b"a", b"5"], bodies, more])
        assert (message.now_ms, message.content, message.score, message.body) == (9, b"a", 5, body)
        assert left == (more == b"1")


@pytest.mark.parametrize(
    ("topic", "backlog", "lowest", "oldest"),
    [(FIXED, b"2", b"5000", 5_000), (FIXED, b"2", b"3", 100), (PRIORITY, b"2", b"5000", 100), (FIXED, b"0", b"", None)],
)
def test_stats(topic: Topic, backlog: bytes, lowest: bytes, oldest: int | None) -> None:
    totals: list[bytes | None] = [None] * len(figures.TOTALS)
    totals[0] = b"9"
    reply = [b"100", backlog, b"1", b"2", b"3", b"4", lowest, b"7", b"8", b"1", totals, []]
    stats = viewing.stats(topic, 0).parse([reply])
    assert (stats.oldest_due_ms, stats.epoch, stats.paused, stats.totals) == (oldest, 8, True, {"accepted": 9})


def test_looking() -> None:
    call = claiming.look(FIXED, [2, 3])
    assert call.keys[:5] == ("t_2", "prepare{t_2}", "retry{t_2}", "meta{t_2}", "t_3")
    assert call.parse([b"9", b"0", b"7"]) == (9, [0, 7])


SEND = sending.send_calls(FIXED)(1, [A, B])
CLAIM = claim_slot(FIXED, 1, 1)


@pytest.mark.parametrize(
    ("call", "message", "kind", "text"),
    [
        (CLAIM, "RMQ_FENCED 7 0", FencedError, "slot 1 of topic t has an owner (epoch 7)"),
        (CLAIM, "RMQ_ENSEMBLE zk", EnsembleMismatchError, "ensemble zk, not through this one; RmqClient.adopt"),
        (SEND, "RMQ_PAST 99 40", FixedTimePassedError, "fixed_time 40 is in the past: Redis' time is 99 ms"),
        (
            steering.reschedule(FIXED, 1, [b"a"], ("at", 5)),
            "ERR RMQ_PAST 99 5",
            FixedTimePassedError,
            "fixed_time 5 is in the past",
        ),
        (
            SEND,
            "RMQ_FULL 12 10",
            BacklogFullError,
            "slot 1 of topic t holds 12 messages; its share of max_backlog is 10",
        ),
        (SEND, "OOM command not allowed when used memory > 'maxmemory'.", MemoryFullError, "stored nothing in slot 1"),
        (
            SEND,
            "ERR Error running script (call to f_1): @user_script: 9: -OOM command not allowed",
            MemoryFullError,
            "raise maxmemory",
        ),
        (
            CLAIM,
            "WRONGTYPE Operation",
            TopicDeletedError,
            "script claim was refused on slot 1 of topic t: the topic was deleted, or another program has written the "
            "key t_1 (WRONGTYPE Op",
        ),
    ],
)
def test_refusals_carry_topic_and_slot(call: Any, message: str, kind: type[RmqError], text: str) -> None:
    error = refusals.error_of(call, message)
    assert type(error) is kind
    assert (error.topic, error.slot) == ("t", 1)
    assert text in str(error)
