"""What the dashboard works out without a server: charts, colours, payloads, what it keeps and for how long."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from rmq import GroupSlot, GroupStats, Minute, SlotStats, Topic, TopicStats, TopicType
from rmq.dashboard import queries
from rmq.dashboard.app import listening
from rmq.dashboard.charts import HEIGHT, MOST_POINTS, WIDTH, Line, draw, heat, nice_top, short
from rmq.dashboard.pages import slot_basis
from rmq.dashboard.queries import Cache, Sample, Samples, basis_for
from rmq.dashboard.rendering import MOST_TEXT, message_link, payload
from rmq.dashboard.security import Credentials, Settings
from rmq.errors import InvalidValueError
from tests.support.waiting import wait_until

# --- charts


@pytest.mark.parametrize(
    ("highest", "top"),
    [(0, 1), (0.3, 1), (1, 1), (1.2, 1.5), (7, 8), (99, 100), (1_001, 1_500), (6_500_000, 8_000_000)],
)
def test_the_upper_edge_is_round_and_high_enough(highest: float, top: float) -> None:
    assert nice_top(highest) == top


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.2"), (17, "17"), (4_210, "4,210"), (52_300, "52.3k"), (1_250_000, "1.25M"), (3e9, "3G")],
)
def test_numbers_in_few_characters(value: float, text: str) -> None:
    assert short(value) == text


def test_a_chart_stays_in_its_box_and_says_what_it_shows() -> None:
    chart = draw(
        "a", "Backlog", [Line("backlog", [(t * 60_000, float(t % 7)) for t in range(61)])], 0, 3_600_000, short
    )
    places = [point for line in json.loads(chart.data) for point in line["points"]]
    assert len(places) == 61
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for _, x, y, _ in places)
    assert (places[0][1], places[-1][1], places[0][2]) == (0, WIDTH, HEIGHT - 1)
    assert chart.summary == "Backlog over the last 1 h. backlog: now 4, highest 6"
    assert chart.lines[0].path.count("M") == 1


def test_a_time_without_figures_is_a_gap() -> None:
    line = Line("x", [(0, 1.0), (60_000, 2.0), (1_000_000, 3.0), (1_060_000, 4.0)])
    [drawn] = draw("a", "X", [line], 0, 1_060_000, short).lines
    assert (drawn.path.count("M"), drawn.area.count("Z")) == (2, 2)


def test_many_points_are_thinned_and_peaks_stay() -> None:
    points = [(t, 1.0) for t in range(10_000)]
    points[1_234] = (1_234, 99.0)
    chart = draw("a", "X", [Line("x", points)], 0, 10_000, short)
    assert len(json.loads(chart.data)[0]["points"]) <= MOST_POINTS
    assert chart.lines[0].highest == "99"


def test_nothing_to_draw() -> None:
    chart = draw("a", "X", [Line("x", [])], 0, 60_000, short)
    assert (chart.empty, chart.summary, chart.lines[0].path) == (True, "X: no data yet", "")


def test_rates_come_from_readings_some_time_apart() -> None:
    samples = Samples()
    assert samples.rates() == {}
    for second in range(20):
        samples.add(Sample(second * 1_000, Minute(0, accepted=100 * second, acked=50 * second)))
    assert (samples.rates()["accepted"], samples.rates()["acked"]) == (100, 50)
    samples.add(Sample(20_000, Minute(0)))  # a Redis that was emptied
    assert samples.rates()["accepted"] == 0
    assert [sample.time_ms for sample in samples.since(18_000)] == [19_000, 20_000]


def test_rates_need_a_reading_that_is_fresh() -> None:
    samples = Samples()
    samples.add(Sample(0, Minute(0)))
    samples.add(Sample(45_000, Minute(0, accepted=6_000)))  # a burst, somewhere in between
    assert samples.rates() == {}
    samples.add(Sample(45_500, Minute(0, accepted=6_000)))
    assert samples.rates() == {}  # too short
    samples.add(Sample(48_000, Minute(0, accepted=6_000)))
    assert samples.rates()["accepted"] == 0
    samples.add(Sample(48_000 + 720_000, Minute(0, accepted=6_000, acked=6_000)))
    assert samples.rates() == {}
    assert samples.rates(fresh_ms=800_000)["acked"] > 0  # where readings are as slow as that


# --- slots


def stats_of(backlogs: list[int], paused: int | None = None) -> TopicStats:
    topic = Topic("t", TopicType.FIXED_TIME, slots=len(backlogs))
    slots = [
        SlotStats("t", n, 10_000, backlog, backlog, 0, 0, 0, 9_000 if backlog else None, 0, 0, n == paused, {})
        for n, backlog in enumerate(backlogs)
    ]
    return TopicStats(topic, tuple(slots))


def test_the_heat_map_says_in_words_what_it_shows_in_colour() -> None:
    found = heat(stats_of([0, 1, 50, 100], paused=2), "backlog", {3: "host:1:a"}, ["host:1:a"])
    assert [colour for _, colour, _ in found] == ["heat0", "heat1", "heat4 paused", "heat7"]
    assert found[0][2] == "slot 0: 0 backlog"
    assert found[2][2] == "slot 2: 50 backlog, paused"
    assert found[3][2] == "slot 3: 100 backlog, host:1:a"
    assert heat(stats_of([0, 5]), "late", {}, [])[1][1:] == ("heat7", "slot 1: 1,000 ms late")


def test_the_heat_map_of_owners() -> None:
    names = [f"host:{n}" for n in range(14)]
    found = heat(stats_of([1, 1, 1, 1]), "owner", {0: "host:0", 1: "host:13", 3: "host:0"}, names)
    assert [colour for _, colour, _ in found] == ["owner0", "owner1", "none", "owner0"]
    assert found[2][2] == "slot 2: no owner"


def test_the_heat_map_of_a_group() -> None:
    slots = [GroupSlot("t", n, "g", "", 0, 0, 0, lag, 0, n == 1, "") for n, lag in enumerate([0, 10, None])]
    found = heat(GroupStats("g", tuple(slots)), "lag", {1: "host:1"}, ["host:1"])
    assert [colour for _, colour, _ in found] == ["heat0", "heat7 paused", "heat0"]
    assert found[1][2] == "slot 1: 10 lag, host:1, paused"
    owned = heat(GroupStats("g", tuple(slots)), "owner", {1: "host:1"}, ["host:1"])
    assert [colour for _, colour, _ in owned] == ["none", "owner0 paused", "none"]


@pytest.mark.parametrize("slots", [1, 2, 64, 1_024])
def test_a_slot_basis_leads_to_each_slot(slots: int) -> None:
    topic = Topic("t", TopicType.PRIORITY, slots=slots)
    assert [topic.slot_of(basis_for(topic, slot)) for slot in range(slots)] == list(range(slots))


def test_the_slot_basis_of_a_message() -> None:
    topic = Topic("t", TopicType.PRIORITY, slots=8)
    home = topic.slot_of(b"a")
    assert slot_basis(topic, b"a", "") is None
    assert slot_basis(topic, b"a", str(home)) is None
    other = slot_basis(topic, b"a", str((home + 1) % 8))
    assert other is not None
    assert topic.slot_of(other) == (home + 1) % 8
    for wrong in ("8", "-1", "x", "1" * 20):
        with pytest.raises(InvalidValueError):
            slot_basis(topic, b"a", wrong)


# --- payloads


def test_payloads() -> None:
    assert (payload(b"plain").text, payload(b"plain").kind, payload(b"plain").cut) == ("plain", "text", False)
    assert payload(b"a\x1b[31m\nb").text == "a\\x1b[31m\nb"
    assert payload(b"\xff" * 20).text.splitlines() == [" ".join(["ff"] * 16), " ".join(["ff"] * 4)]
    assert payload(b"").text == ""


def test_what_is_long_is_cut_between_characters() -> None:
    for lead in range(4):
        long = payload(b"x" * lead + "𝄞".encode() * 60_000)
        assert (long.kind, long.cut, long.size) == ("text", True, lead + 240_000)
        assert len(long.text) <= MOST_TEXT
        assert "\\x" not in long.text
    assert payload(b"beginning", 1_000_000).cut
    assert payload("é".encode()[:1], 2).kind == "text"  # a beginning that ends within a character
    assert payload("é".encode()[:1]).kind == "hex"


def test_addresses_of_messages() -> None:
    assert message_link("t", 3, b"a b", "store") == "/message?topic=t&slot=3&hex=612062"
    long = message_link("t", 3, b"a" * 2_000, "dead")
    assert "place=dead&sha256=" in long
    assert len(long) < 200


# --- what is kept


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(queries, "monotonic_s", lambda: now[0])
    return now


def test_what_was_just_read_is_not_read_again(clock: list[float]) -> None:
    cache, reads = Cache(), [0]

    def read() -> int:
        reads[0] += 1
        clock[0] += 0.1  # what a reading takes
        return reads[0]

    assert [cache.get("a", read) for _ in range(5)] == [1] * 5
    clock[0] += 9.9  # a hundred times as long as it took, not yet
    assert cache.get("a", read) == 1
    assert reads[0] == 1
    clock[0] += 0.2
    assert cache.get("a", read) == 1  # at once, and again in the background
    wait_until(lambda: reads[0] == 2)
    wait_until(lambda: cache.get("a", read) == 2)
    clock[0] += 60
    assert cache.get("a", read) == 3  # nobody has looked for long: not shown before it was read
    cache.drop()
    assert cache.get("a", read) == 4


def test_a_failure_is_passed_on_and_not_kept(clock: list[float]) -> None:
    cache = Cache()

    def fail() -> int:
        raise InvalidValueError("no")

    with pytest.raises(InvalidValueError):
        cache.get("a", fail)
    assert cache.get("a", lambda: 1) == 1
    clock[0] += 3
    assert cache.get("a", fail) == 1  # fails in the background: the next one is told
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "rmq-dashboard-read"])
    with pytest.raises(InvalidValueError):
        cache.get("a", fail)


def test_many_at_once_cost_one_reading() -> None:
    cache, reads, ready = Cache(), [0], threading.Barrier(8)
    found: list[int] = []

    def read() -> int:
        reads[0] += 1
        return reads[0]

    def look() -> None:
        ready.wait(30)
        found.append(cache.get("a", read))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [1] * 8


# --- where it listens


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_all_addresses_of_ipv6_are_those_of_ipv4_too() -> None:
    with listening(Settings("::", 0, Credentials("ada", "secret"))) as server:
        port: int = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=30):
            pass


def test_a_port_that_is_taken_is_refused_in_one_clause() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        with pytest.raises(InvalidValueError) as refused:
            listening(Settings("127.0.0.1", port))
    assert str(refused.value) == f"cannot listen on 127.0.0.1, port {port}: Address already in use"
