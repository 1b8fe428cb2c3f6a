"""What goes along with a claim stays within the bounds of a script call, and what does not follows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import Delivery, Outcome, Topic, TopicType, Verb
from rmq._broker.claims import WHOLE_BATCH
from rmq._claiming.rounds import FREED_BYTES, NAMED_ACKS, OutcomeBatch, batch_outcomes, nack_of, stale_among
from rmq._model.claims import Selection, bytes_of, deliveries_of, size_of, whole
from rmq._model.deliveries import Claim
from rmq._model.outcomes import ACKED, RELEASED
from tests.support.claims import Claimed, claim_of

TOPIC = Topic("t", TopicType.PRIORITY, slots=4)
NACKED = Outcome(Verb.NACK, None, "E", "m")
SCORE = 1_790_000_000_000_016


def claimed(
    slot: int, outcomes: Sequence[Outcome | None], first: int = 0, body: bytes | None = None, score: int = SCORE
) -> Claim:
    rows = [Claimed(b"%02d" % (first + index), 50, score, body) for index in range(len(outcomes))]
    claim = claim_of(TOPIC, *rows, slot=slot)
    claim.outcomes[:] = outcomes
    return claim


def sent_by(batches: Sequence[OutcomeBatch]) -> list[Selection]:
    return [part for batch in batches for part in batch.selections]


CLAIMS = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.sampled_from([ACKED, NACKED, RELEASED]), min_size=1, max_size=5)),
    max_size=10,
)


@given(CLAIMS, st.integers(1, 5), st.integers(1, 40), st.booleans())
def test_each_goes_once_nacks_bounded_by_slot_and_in_bytes_and_the_rest_follows(
    made: list[tuple[int, list[Outcome]]], most: int, most_bytes: int, may_be_whole: bool
) -> None:
    claims = [
        claimed(slot, outcomes, 10 * index, score=SCORE + 1_000 * index) for index, (slot, outcomes) in enumerate(made)
    ]
    waiting, sent = [whole(claim) for claim in claims], list[Delivery]()
    for _ in range(sum(map(len, claims)) + 1):
        batches, later = batch_outcomes(waiting, 0.0, most, most_bytes=most_bytes, may_be_whole=may_be_whole)
        assert all(size_of(batch.nacked) <= most for batch in batches.values())
        named = deliveries_of(part for batch in batches.values() for part in [*batch.nacked, *batch.acked])
        assert sum(len(each.name) for each in named) <= most_bytes or len(named) == 1
        sent += deliveries_of(sent_by([*batches.values()]))
        for batch in batches.values():
            done = batch.take((), (), None)
            assert (size_of(done.done), done.unsent, done.stale) == (size_of(batch.selections), [], [])
        waiting = later
    assert waiting == []
    assert len(sent) == len(set(sent)) == sum(map(len, claims))
    assert all(claim.is_over for claim in claims)


def test_a_claim_of_which_a_nack_has_to_wait_is_not_acked_as_a_whole() -> None:
    claim = claimed(0, [ACKED, ACKED, NACKED, NACKED])
    batches, later = batch_outcomes([whole(claim)], 0.0, 1)
    (batch,) = batches.values()
    assert later == [(claim, [3])]
    assert batch.outcomes()[::2] == ([(b"00", SCORE), (b"01", SCORE)], [])
    batches, later = batch_outcomes([whole(claim)], 0.0, 2)
    assert [batch.outcomes()[::2] for batch in batches.values()] == [([], [(SCORE, 2)])]


@pytest.mark.parametrize("why", ["open", "named", "apart", "late", "bodies", "one", "ended"])
def test_when_a_claim_is_acked_by_name(why: str) -> None:
    claim = claimed(0, [ACKED] * 3, body=b"b" if why == "bodies" else None)
    claim.named = why == "named"
    claim.lease_until_s = 5.0
    rows = range(3)
    if why == "open":
        claim.outcomes[2], rows = None, range(2)
    elif why == "apart":
        claim.apart = {1: (SCORE + 1_000, 9.0)}
    elif why in ("one", "ended"):
        rows = range(1) if why == "one" else range(2)
        claim.end(range(rows.stop, 3))
    (batch,) = batch_outcomes([Selection(claim, rows)], 6.0 if why == "late" else 4.0, 1)[0].values()
    assert (len(batch.outcomes().acks), len(batch.whole)) == ((0, 1) if why == "ended" else (len(rows), 0))


def test_of_a_reply_the_refused_go_again() -> None:
    refused, acked, nacked = claimed(0, [ACKED] * 3), claimed(0, [ACKED], score=SCORE + 1_000), claimed(0, [NACKED] * 3)
    nacked.score += 2_000
    (batch,) = batch_outcomes([*map(whole, [refused, acked, nacked])], 0.0, 9)[0].values()
    done = batch.take([b"00"], [SCORE], 1)
    assert [(claim, list(rows)) for claim, rows in done.unsent] == [(refused, [0, 1, 2]), (nacked, [1, 2])]
    assert done.stale == [(acked, [0])]
    assert (refused.named, acked.named, nacked.named) == (True, False, False)
    assert [bytes(claim.ended) for claim in (refused, acked, nacked)] == [b"\0\0\0", b"\1", b"\1\0\0"]


def test_acks_by_name_are_bounded_over_all_slots_and_the_rest_follows() -> None:
    """A thousand of them cost the server a millisecond; claims acked as a whole do not count."""
    many = [claimed(slot, [ACKED] * NAMED_ACKS) for slot in (0, 1)]
    batches, later = batch_outcomes([*map(whole, many)], 0.0, 1)
    assert [batch.outcomes()[::2] for batch in batches.values()] == [([], [(SCORE, NAMED_ACKS)])] * 2
    assert later == []
    for claim in many:
        claim.named = True
    batches, later = batch_outcomes([*map(whole, many)], 0.0, 1)
    assert [len(batch.outcomes().acks) for batch in batches.values()] == [NAMED_ACKS]
    sent = sent_by([*batches.values()])
    batches, last = batch_outcomes(later, 0.0, 1)
    assert last == []
    assert [claim for claim, _ in sent + sent_by([*batches.values()])] == many


def test_claims_acked_as_a_whole_are_bounded_in_each_slot_and_the_rest_follows() -> None:
    """Four thousand of a slot went in one call, which held the server up."""
    waiting = [whole(claimed(number % 2, [ACKED] * 2)) for number in range(3 * WHOLE_BATCH)]
    batches, waiting = batch_outcomes(waiting, 0.0, 1)
    assert [(len(batch.whole), batch.acked) for batch in batches.values()] == [(WHOLE_BATCH, [])] * 2
    batches, waiting = batch_outcomes(waiting, 0.0, 1)
    assert [len(batch.whole) for batch in batches.values()] == [WHOLE_BATCH // 2] * 2
    assert waiting == []


def test_acks_by_name_are_bounded_by_the_bodies_that_go_with_them() -> None:
    """To free a thousand bodies of 1 MiB held the server up for 80 ms."""
    body = b"b" * 1_048_576
    number = FREED_BYTES // len(body) + 16
    waiting, rounds = [whole(claimed(slot, [ACKED] * (number // 2), body=body)) for slot in (0, 1)], list[int]()
    while waiting:
        batches, waiting = batch_outcomes(waiting, 0.0, 1)
        sent = sent_by([*batches.values()])
        assert bytes_of(sent) <= FREED_BYTES + 1_000
        rounds.append(size_of(sent))
    assert len(rounds) == 2
    assert sum(rounds) == number


@pytest.mark.parametrize("names", [1, 16])
def test_once_the_bodies_of_a_call_are_enough_those_of_other_slots_follow(names: int) -> None:
    """The first message of a claim that reached the bound may be larger than what was left: the next claim waits."""
    size = FREED_BYTES // 60
    waiting, sent = [whole(claimed(slot, [ACKED] * names, body=b"b" * size)) for slot in range(100 // names)], 0
    while waiting:
        batches, waiting = batch_outcomes(waiting, 0.0, 1)
        assert 0 < bytes_of(sent_by([*batches.values()])) <= FREED_BYTES + 1_000
        sent += size_of(sent_by([*batches.values()]))
    assert sent == 100 // names * names


def test_of_two_deliveries_of_a_message_the_first_one_is_stale() -> None:
    before, after = claimed(0, [ACKED]), claimed(0, [ACKED, ACKED], score=SCORE + 1_000)
    a, b = after.rows.names
    all_ = [whole(after), whole(before)]
    assert stale_among(all_, [a]) == [(before, [0])]
    assert stale_among(all_, [a, b, a]) == [(before, [0]), (after, [0, 1])]
    assert stale_among(all_, []) == []


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
    made = claim_of(Topic("t", kind, max_retries=max_retries), Claimed(b"a", 700, SCORE, None)).delivery(0)
    nack = nack_of(made, Outcome(Verb.RELEASE, 5_000, "E", "m"))
    assert (nack.verb, nack.number) == (verb, number)
    plain = nack_of(made, RELEASED)
    assert (plain.verb, plain.number) == ("release", 700)
