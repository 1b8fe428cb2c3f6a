"""A delivery as a handler sees it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from rmq import Delivery, Outcome, Owner, Ties, Topic, TopicType, Verb
from rmq._model.outcomes import ACKED, RELEASED, describe
from rmq._model.times import monotonic_s
from rmq.errors import AlreadySettledError, InvalidValueError, LeaseLostError
from tests.support.claims import Claimed, claim_of

SECOND = 1_790_000_000


class HolderStub:
    """Says what it is told to say, and notes what it is asked to do."""

    def __init__(self, answer: bool = True) -> None:
        self.answer = answer
        self.settled: list[tuple[Delivery, Outcome]] = []

    def settle(self, delivery: Delivery, outcome: Outcome) -> bool:
        self.settled.append((delivery, outcome))
        return self.answer

    def still_owner(self, delivery: Delivery) -> bool:
        return self.answer


def make(
    type: TopicType = TopicType.RANGE_MERGE,
    store_score: int = SECOND * 1000 - 5,
    left: int = 16,
    holder: HolderStub | None = None,
    lease_until_s: float = 55.0,
) -> Delivery:
    claimed = Claimed(b"item:1", store_score, SECOND * 1000 + left, b"body")
    topic = Topic("t", type, slots=4, ties=Ties.ANY if type is TopicType.PRIORITY else None)
    claim = claim_of(topic, claimed, slot=3, lease_until_s=lease_until_s, holder=holder or HolderStub())
    claim.owner, claim.claimed_ms = Owner(9, "z"), SECOND * 1000 + 7
    return claim.delivery(0)


def test_what_it_is() -> None:
    delivery = make()
    assert (delivery.content, delivery.text, delivery.body, delivery.slot) == (b"item:1", "item:1", b"body", 3)
    assert (delivery.attempt, delivery.retries_left) == (1, 16)
    assert (delivery.due_ms, delivery.priority) == (SECOND * 1000 - 5, None)
    assert (delivery.claimed_ms, delivery.lease_until_s) == (SECOND * 1000 + 7, 55.0)
    assert not delivery.lost
    assert delivery.fencing_token == 9
    assert repr(delivery) == "<Delivery b'item:1' of t, slot 3, attempt 1>"


def test_a_priority_and_a_retry() -> None:
    assert (make(TopicType.PRIORITY, 70).priority, make(TopicType.PRIORITY, 70).due_ms) == (70, None)
    retried = make(TopicType.PRIORITY, 4, left=3)
    assert (retried.priority, retried.due_ms, retried.attempt, retried.retries_left) == (None, None, 14, 3)
    assert make(TopicType.FIXED_TIME, 1, left=0).attempt == 17
    assert make(TopicType.FIXED_TIME, 1, left=0).due_ms is None


def test_content_that_is_not_text() -> None:
    delivery = make()
    delivery.content = b"\xff"
    with pytest.raises(UnicodeDecodeError):
        _ = delivery.text


@pytest.mark.parametrize(
    ("act", "outcome"),
    [
        (Delivery.ack, ACKED),
        (Delivery.release, RELEASED),
        (Delivery.nack, Outcome(Verb.NACK)),
        (lambda delivery: delivery.nack(timedelta(seconds=2)), Outcome(Verb.NACK, 2_000)),
        (lambda delivery: delivery.nack("0s", ValueError("bad")), Outcome(Verb.NACK, 0, "ValueError", "bad")),
        (lambda delivery: delivery.nack(error="busy"), Outcome(Verb.NACK, None, "", "busy")),
        (lambda delivery: delivery.bury(KeyError("k")), Outcome(Verb.BURY, 0, "KeyError", "'k'")),
    ],
)
def test_each_ending_is_carried_out_once(act: Callable[[Delivery], bool], outcome: Outcome) -> None:
    holder = HolderStub(answer=False)
    delivery = make(holder=holder)
    assert act(delivery) is False  # what the holder says: stale
    assert holder.settled == [(delivery, outcome)]
    assert delivery.outcome == outcome
    for again in (Delivery.ack, Delivery.nack, Delivery.bury, Delivery.release):
        with pytest.raises(AlreadySettledError, match=outcome.verb.value) as caught:
            again(delivery)
        assert (caught.value.topic, caught.value.slot) == ("t", 3)
    assert len(holder.settled) == 1


def test_a_bad_delay_leaves_it_open() -> None:
    delivery = make()
    with pytest.raises(InvalidValueError, match="delay"):
        delivery.nack(timedelta(-1))
    assert delivery.outcome is None
    assert delivery.ack() is True


def test_a_lost_lease_is_told() -> None:
    delivery = make()
    delivery.raise_if_lost()
    delivery.claim.lose([0])
    with pytest.raises(LeaseLostError, match="item:1"):
        delivery.raise_if_lost()


def test_still_owner_asks_lease_and_holder() -> None:
    later_s = monotonic_s() + 30
    assert make(lease_until_s=later_s).still_owner()
    assert not make(lease_until_s=later_s, holder=HolderStub(answer=False)).still_owner()
    assert not make(lease_until_s=monotonic_s()).still_owner()
    lost = make(lease_until_s=later_s)
    lost.claim.lose([0])
    assert not lost.still_owner()


def test_errors_are_described_so_that_redis_and_json_can_hold_them() -> None:
    assert describe("plain") == ("", "plain")
    assert describe(ValueError("x" * 5_000)) == ("ValueError", "x" * 1_000)
    kind, text = describe(ValueError("a\udc80b"))
    assert (kind, text) == ("ValueError", "a\\udc80b")
    assert text.encode()


class Odd(type):
    @property
    def __name__(cls) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise LookupError


class OddText(str):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    def __getitem__(self, key: object) -> str:
        raise LookupError


def saying(text: Callable[[object], object], base: type[BaseException] = Exception) -> BaseException:
    return type("Saying", (base,), {"__str__": text})()


def exits(_: object) -> str:
    raise SystemExit


@pytest.mark.parametrize(
    ("error", "described"),
    [
        (saying(lambda _: 7), ("Saying", "(the error's text cannot be read: TypeError)")),
        (saying(exits, BaseException), ("Saying", "(the error's text cannot be read: SystemExit)")),
        (saying(lambda _: OddText("odd")), ("Saying", "odd")),
        (OddText("odd"), ("", "(the error's text cannot be read: KeyboardInterrupt)")),
        (Odd("Named", (Exception,), {})("text"), ("Named", "text")),
        (ValueError(10**5_000), ("ValueError", "(the error's text cannot be read: ValueError)")),
        (ValueError("\ud800" * 2_000), ("ValueError", ("\\ud800" * 167)[:1_000])),
        (None, ("NoneType", "None")),
    ],
)
def test_describing_an_error_raises_nothing(error: BaseException, described: tuple[str, str]) -> None:
    assert describe(error) == described
