"""The demo's judgement: it must see what is wrong, not only praise what is right."""

from __future__ import annotations

import io
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rmq import DeadMessage
from rmq.demo import show
from rmq.demo.jobs import CUSTOMER_PICTURE, PRICE_PICTURE, TAKINGS, Tier
from rmq.demo.orders import read_orders
from rmq.demo.summary import Account, Handled, Run, booked, outdated, overlaps, spread, total

RECORD = Handled(PRICE_PICTURE.name, "item:1", True, 10.0, 11.0, 5, False, None)
GOLD = Handled(CUSTOMER_PICTURE.name, "item:1 customer:2", True, 12.0, 13.0, 70, False, "GOLD")
TAKEN = Handled(TAKINGS.name, "takings:2", True, 14.0, 15.0, 0, False, None, pence=615, first_sent_ms=1_000)
ACCOUNT = Account(PRICE_PICTURE.name, 10, 3, 8, 1, 5, 1, 1, backlog=0, due=0, in_flight=0, waiting=0, found=0)
DEAD = DeadMessage(PRICE_PICTURE.name, 0, b"item:9", None, 1, "MissingPhotoError", "no photo", 4, 1, 1)
ALSO = replace(ACCOUNT, topic=TAKINGS.name)
RECORDS = RECORD, GOLD, TAKEN
RUN = Run(
    20.0, 22.0, 4_940, (ACCOUNT, ALSO), RECORDS, {(RECORD.topic, "item:1"): 9.0}, (DEAD,), takings={"takings:2": 615}
)


def broken(run: Run) -> set[str]:
    return {check.name for check in run.checks() if not check.kept}


def shown(thing: object) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(thing)
    return console.export_text()


def test_a_run_in_order() -> None:
    assert broken(RUN) == set()
    assert RUN.exit_code == 0
    assert RUN.to_json()["ok"] is True
    assert RUN.lateness_of_tier(Tier.GOLD).p50_ms == 70
    assert RUN.lateness_of_tier(Tier.BRONZE).count == 0


def test_each_broken_promise_is_seen() -> None:
    assert broken(replace(RUN, accounts=(replace(ACCOUNT, acked=4),))) == {"accounts"}
    assert broken(replace(RUN, accounts=(replace(ACCOUNT, acked=4, backlog=1),))) == {"empty"}
    assert broken(replace(RUN, accounts=(replace(ACCOUNT, acked=4, waiting=1),))) == {"empty"}
    assert broken(replace(RUN, records=(*RECORDS, replace(RECORD, started_s=10.5)))) == {"no overlap"}
    assert broken(replace(RUN, records=(*RECORDS, replace(RECORD, started_s=12.0, early=True)))) == {"not early"}
    assert broken(replace(RUN, last_sent_s={(RECORD.topic, "item:1"): 10.5})) == {"up to date"}
    assert broken(replace(RUN, takings={"takings:2": 616})) == {"sums"}
    assert broken(replace(RUN, takings={**RUN.takings, "takings:3": 1})) == {"sums"}
    assert broken(replace(RUN, records=(*RECORDS, replace(TAKEN, started_s=20.0, first_sent_ms=1_001)))) == {"sums"}
    assert replace(RUN, accounts=(replace(ACCOUNT, acked=4),)).exit_code == 1


def test_what_died_need_not_be_done() -> None:
    assert broken(replace(RUN, last_sent_s={(PRICE_PICTURE.name, "item:9"): 50.0})) == set()
    assert outdated({("t", "x"): 1.0}, [], {("t", "x")}) == []
    assert outdated({("t", "x"): 1.0}, [replace(RECORD, topic="t", content="x", done=False)], ()) == [("t", "x")]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20), st.integers(1, 5)), max_size=12))
def test_overlaps_agree_with_a_look_at_every_pair(spans: list[tuple[str, int, int]]) -> None:
    records = [
        replace(RECORD, content=name, started_s=float(start), ended_s=float(start + length))
        for name, start, length in spans
    ]
    pairs = any(
        one.content == other.content and one.started_s < other.ended_s and other.started_s < one.ended_s
        for number, one in enumerate(records)
        for other in records[number + 1 :]
    )
    assert bool(overlaps(records)) == pairs


def test_a_value_that_comes_back_stands_in_the_place_of_what_was_booked() -> None:
    failed = replace(TAKEN, done=False, started_s=16.0, pence=99)
    again = replace(TAKEN, started_s=17.0, pence=700)
    later = replace(TAKEN, started_s=18.0, pence=-50, first_sent_ms=2_000)
    assert booked([later, again, failed, *RECORDS]) == {"takings:2": 650}


def test_sums_are_not_judged_where_an_earlier_run_had_left_some() -> None:
    left = replace(RUN, accounts=(ACCOUNT, replace(ALSO, found=1, acked=6)), takings={})
    assert broken(left) == set()
    assert "not compared" in shown(show.summary(left))


def test_records_travel_as_json() -> None:
    assert [Handled.from_json(record.to_json()) for record in RECORDS] == [*RECORDS]


def test_spread() -> None:
    assert (spread([None]).count, spread([]).p99_ms) == (0, 0)
    late = spread([*range(100), None])
    assert (late.count, late.p50_ms, late.p99_ms, late.mean_ms) == (100, 50, 99, 50)


def test_accounts_add_up() -> None:
    both = total([ACCOUNT, replace(ACCOUNT, topic="other", found=2, acked=7)])
    assert (both.accepted, both.acked, both.found, both.missing) == (20, 12, 2, 0)
    assert replace(ACCOUNT, backlog=1).left == 1
    assert ACCOUNT.left == ACCOUNT.missing == 0


def test_the_summary_says_in_words_how_it_went() -> None:
    text = shown(show.summary(RUN))
    assert "Nothing was lost" in text
    assert "no photo" in text
    assert text.count("GBP 6.15") == 2
    wrong = shown(show.summary(replace(RUN, accounts=(replace(ACCOUNT, acked=4),), dead=())))
    assert "BROKEN" in wrong
    assert "Some checks failed" in wrong
    assert "Dead letters" not in wrong
    assert max(map(len, text.splitlines())) <= 80


def test_the_live_view_fits_a_small_terminal() -> None:
    busy = [replace(ACCOUNT, topic=topic, accepted=2_429, waiting=2) for topic in ("demo.customer-picture", "demo.x")]
    orders = read_orders()
    for lines in (10, len(orders)):
        text = shown(show.live_view(orders[0].at, lines, len(orders), busy))
        assert "customer-picture" in text
        assert "2,429" in text
        assert "…" not in text
        assert len(text.splitlines()) == 7
    assert "sent 4,858" in show.live_line(orders[0].at, 10, len(orders), busy)
    assert "in 20 seconds" in shown(show.opening(orders, 20, "unix:///tmp/redis.sock"))
