"""What goes along with a claim stays within the bounds of a script call, and what does not follows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import Delivery, Outcome, Topic, TopicType, Verb
from rmq._claiming.chunks import FREED_BYTES, bytes_of
from rmq._claiming.outcome_batches import NAMED_ACKS, batch_outcomes, nack_of, stale_among
from rmq._model.deliveries import ACKED, RELEASED
from rmq._model.replies import Claimed

TOPIC = Topic("t", TopicType.PRIORITY, slots=4)
NACKED = Outcome(Verb.NACK, None, "E", "m")
SCORE = 1_790_000_000_000_016


class Nobody:
    """Holds deliveries that are never settled."""


def delivery(slot: int, index: int, body: int, outcome: Outcome) -> Delivery:
    claimed = Claimed(b"%02d" % index, 50, SCORE, b"b" * body)
    made = Delivery(TOPIC, slot, claimed, 0, 1e18, Nobody())  # pyright: ignore[reportArgumentType]
    made.outcome = outcome
    return made


ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 20), st.sampled_from([ACKED, NACKED, RELEASED])), max_size=30
)


@given(ROWS, st.integers(1, 5), st.integers(1, 40))
def test_each_goes_once_nacks_bounded_by_slot_and_in_bytes_and_the_rest_follows(
    rows: list[tuple[int, int, Outcome]], most: int, most_bytes: int
) -> None:
    waiting = [delivery(slot, index, body, outcome) for index, (slot, body, outcome) in enumerate(rows)]
    sent: list[Delivery] = []
    for _ in range(len(rows) + 1):
        batches, later = batch_outcomes(waiting, waiting, 0.0, most, most_bytes)
        assert all(each.deliveries and len(each.nacks) <= most for each in batches.values())
        nacked = [each for part in batches.values() for each in part.deliveries if each.outcome != ACKED]
        size = sum(len(each.name) for each in nacked)
        assert size <= most_bytes or len(nacked) == 1
        sent += [each for part in batches.values() for each in part.deliveries]
        assert all(each.outcome != ACKED for each in later)
        waiting = later
    assert waiting == []
    assert sorted(each.name for each in sent) == [b"%02d" % index for index in range(len(rows))]


def test_a_claim_of_which_a_nack_has_to_wait_is_not_acked_as_a_whole() -> None:
    all_ = [delivery(0, index, 0, outcome) for index, outcome in enumerate([ACKED, ACKED, NACKED, NACKED])]
    batches, later = batch_outcomes(all_, all_, 0.0, 1)
    (settlements,) = batches.values()
    assert later == all_[3:]
    assert settlements.outcomes(lambda *_: True)[::2] == ([(b"00", SCORE), (b"01", SCORE)], [])
    batches, later = batch_outcomes(all_, all_, 0.0, 2)
    assert [each.outcomes(lambda *_: True)[::2] for each in batches.values()] == [([], [(SCORE, 2)])]


def test_acks_by_name_are_bounded_over_all_slots_and_the_rest_follows() -> None:
    """A thousand of them cost the server a millisecond; claims acked as a whole do not count."""
    many = [delivery(slot, index, 0, ACKED) for slot in (0, 1) for index in range(NAMED_ACKS)]
    batches, later = batch_outcomes(many, many, 0.0, 1)
    assert [each.outcomes(lambda *_: True)[::2] for each in batches.values()] == [([], [(SCORE, NAMED_ACKS)])] * 2
    assert later == []
    open_ = delivery(0, NAMED_ACKS, 0, ACKED), delivery(1, NAMED_ACKS, 0, ACKED)
    for each in open_:
        each.outcome = None
    held, sent = [*many, *open_], list[Delivery]()
    batches, later = batch_outcomes(many, held, 0.0, 1)
    assert [len(list(each.outcomes(lambda *_: True).acks)) for each in batches.values()] == [NAMED_ACKS]
    sent += [each for part in batches.values() for each in part.deliveries]
    batches, last = batch_outcomes(later, held, 0.0, 1)
    assert last == []
    sent += [each for part in batches.values() for each in part.deliveries]
    assert sorted(map(id, sent)) == sorted(map(id, many))


def test_acks_by_name_are_bounded_by_the_bodies_that_go_with_them() -> None:
    """To free a thousand bodies of 1 MiB held the server up for 80 ms."""
    body = b"b" * 1_048_576
    acked = [delivery(index % 2, index, 0, ACKED) for index in range(FREED_BYTES // len(body) + 16)]
    for each in acked:
        each.body, each.ack_individually = body, True
    waiting, rounds = acked, list[int]()
    while waiting:
        batches, waiting = batch_outcomes(waiting, acked, 0.0, 1)
        sent = [each for part in batches.values() for each in part.deliveries]
        assert bytes_of(sent) <= FREED_BYTES + len(body)
        rounds.append(len(sent))
    assert len(rounds) == 2
    assert sum(rounds) == len(acked)


def test_of_two_deliveries_of_a_message_the_first_one_is_stale() -> None:
    before, after, other = (delivery(0, index, 0, ACKED) for index in (0, 0, 1))
    after.claim_score, other.claim_score = before.claim_score + 1_000, before.claim_score + 1_000
    a, b = before.name, other.name
    assert stale_among([after, other, before], [a]) == [before]
    assert stale_among([after, other, before], [a, b, a]) == [before, after, other]
    assert stale_among([after, other, before], []) == []


@pytest.mark.parametrize(
    ("kind", "max_retries", "verb", "number"),
    [
        (TopicType.PRIORITY, 0, "release", 700),
        (TopicType.FIXED_TIME, 0, "release", 5_700),
        (TopicType.RANGE_MERGE, 0, "release", 5_700),
        (TopicType.STREAM, 0, "spare", 5_000),
        (TopicType.PRIORITY, 1, "spare", 5_000),
        (TopicType.FIXED_TIME, 1, "spare", 5_000),
    ],
)
def test_one_that_is_spared_stays_a_fresh_message_where_there_are_no_retries(
    kind: TopicType, max_retries: int, verb: str, number: int
) -> None:
    topic = Topic("t", kind, max_retries=max_retries)
    made = Delivery(topic, 0, Claimed(b"a", 700, SCORE, None), 0, 1e18, Nobody())  # pyright: ignore[reportArgumentType]
    nack = nack_of(made, Outcome(Verb.RELEASE, 5_000, "E", "m"))
    assert (nack.verb, nack.number) == (verb, number)
    plain = nack_of(made, RELEASED)
    assert (plain.verb, plain.number) == ("release", 700)
