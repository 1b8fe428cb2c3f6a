"""The script that keeps nodes for the owners of slots: sessions by Redis' clock, numbers, and what a failover loses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from rmq import TopicType
from rmq._broker.keys import OWNERS_KEYS
from rmq._ownership.redis_keeper import keeper_call
from rmq._ownership.requests import Children, Create, Get, Look, Put, Release, Sync
from rmq._transport.connections import Connections
from tests.lua.cases import Example
from tests.support.core import Call, parse_url
from tests.support.slots import CLOCK_KEY, T0, scripts_with_fake_clock, with_hints

TIMEOUT_MS = 6_000
MOST_AT_ONCE = 2_048


def _keep(*_: object) -> Call[Any]:
    changes = Create("/a", b"", False), Create("/a/b", b"", True), Put("/a", b"x", 0), Release("/a/b", "/a")
    requests = [Sync(), *changes, Look("/a"), Get("/a"), Children("/a", own=True)]
    return with_hints(keeper_call(0, TIMEOUT_MS, requests))


EXAMPLES = {"keeper": Example(TopicType.FIXED_TIME, _keep, lambda slot: None)}


class Keeper:
    """Calls of the script at the times of a clock that the test moves."""

    def __init__(self, connections: Connections, server: Any) -> None:
        self.connections, self.server = connections, server
        self.at(0)

    def at(self, after_ms: int) -> None:
        self.server.set(CLOCK_KEY, T0 + after_ms)

    def call(self, session: int, *requests: Any, timeout_ms: int = TIMEOUT_MS, **numbers: int) -> Any:
        return self.connections.run(with_hints(keeper_call(session, timeout_ms, requests, **numbers)))

    def open(self, name: str = "") -> int:
        session = self.call(0).session
        if name:
            made = self.call(session, Create("/w", b"", False), Create(f"/w/{name}", b"", True))
            assert made.answers[1]
        return session

    def hints(self) -> list[int]:
        found = self.server.lrange(OWNERS_KEYS["wake"], 0, -1)
        self.server.delete(OWNERS_KEYS["wake"])
        return [int(each) for each in found]

    def names(self, session: int, path: str = "/w") -> list[str]:
        answer = self.call(session, Children(path)).answers[0]
        assert answer[0] == len(answer) - 1
        return [each.rpartition(b"\0")[2].decode() for each in answer[1:]]


@pytest.fixture
def keeper(redis_url: str, redis_client: redis.Redis) -> Iterator[Keeper]:
    connections = Connections(parse_url(redis_url), scripts=scripts_with_fake_clock())
    redis_client.delete(*OWNERS_KEYS.values())
    try:
        yield Keeper(connections, redis_client)
    finally:
        connections.close()
        redis_client.delete(CLOCK_KEY, *OWNERS_KEYS.values())


def test_a_silent_session_ends_with_its_nodes_in_the_next_call_of_anybody(keeper: Keeper) -> None:
    silent, other = keeper.open("a"), keeper.open()
    for after_ms in (1_500, 3_000, 4_500, 5_999):
        keeper.at(after_ms)
        assert keeper.names(other) == ["a"]
    keeper.at(6_000)
    assert keeper.names(other) == []
    assert keeper.call(silent, Sync()).session == 0
    assert keeper.call(silent, Sync()).answers is None


def test_a_call_of_a_session_that_has_ended_does_nothing(keeper: Keeper) -> None:
    silent, other = keeper.open("a"), keeper.open()
    for after_ms in (1_500, 3_000, 4_500, 6_000):
        keeper.at(after_ms)
        keeper.call(other)
    late = keeper.call(silent, Create("/w/late", b"", True), Release("/w/a", "/w"))
    assert (late.session, late.answers) == (0, None)
    assert keeper.names(other) == []


def test_time_in_which_nobody_was_heard_ends_no_session(keeper: Keeper) -> None:
    """Redis stood still: the first one who comes back must not end all others."""
    first, second = keeper.open("a"), keeper.open("b")
    keeper.at(90_000)
    assert keeper.names(first) == ["a", "b"]
    assert keeper.call(second, Sync()).session == second
    for after_ms in (91_500, 93_000, 94_500, 96_000, 97_500):  # the second one is silent from now on
        keeper.at(after_ms)
        assert keeper.names(first) == (["a", "b"] if after_ms < 96_000 else ["a"])


@pytest.mark.parametrize("own_ms", [1_000, TIMEOUT_MS, 3_600_000])
def test_after_a_standstill_a_caller_with_another_timeout_ends_no_session(keeper: Keeper, own_ms: int) -> None:
    short, middle = keeper.open("a"), keeper.call(0, timeout_ms=60_000).session
    caller = keeper.call(0, timeout_ms=own_ms).session
    for after_ms in (1_000_000, 2_000_000):
        keeper.at(after_ms)
        (listed,) = keeper.call(caller, Children("/w"), timeout_ms=own_ms).answers
        assert listed == [1, b"/w\0a"]
        assert keeper.call(middle, Sync(), timeout_ms=60_000).session == middle
        assert keeper.call(short, Sync()).session == short


def test_a_dead_session_ends_within_four_rare_calls_and_then_slows_the_clock_no_more(keeper: Keeper) -> None:
    _, other, long_ms = keeper.open("a"), keeper.call(0, timeout_ms=60_000).session, 60_000
    for after_ms in (10_000, 20_000, 30_000):
        keeper.at(after_ms)
        (listed,) = keeper.call(other, Children("/w"), timeout_ms=long_ms).answers
    assert listed == [0]
    before = int(keeper.server.hget(OWNERS_KEYS["state"], "clock"))
    keeper.at(40_000)
    keeper.call(other, timeout_ms=long_ms)
    assert int(keeper.server.hget(OWNERS_KEYS["state"], "clock")) == before + 10_000


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_a_clock_that_jumps_ends_no_session_and_no_number_falls(keeper: Keeper, jump_ms: int) -> None:
    first, _ = keeper.open("a"), keeper.open("b")
    before = keeper.call(first, Sync()).number
    keeper.at(jump_ms)
    assert keeper.names(first) == ["a", "b"]
    assert keeper.call(first, Create("/n", b"", False)).number > before
    for step in range(1, 5):
        keeper.at(jump_ms + step * 1_500)
        keeper.call(first)
    assert keeper.names(first) == ["a"]


def test_numbers_follow_the_clock_and_grow_within_a_millisecond(keeper: Keeper) -> None:
    session = keeper.open()
    assert session == T0
    made = keeper.call(session, Create("/a", b"", False), Create("/b", b"", False))
    assert made.answers == [b"%d %d 0 0" % (T0 + n, T0 + n) for n in (1, 2)]
    keeper.at(50)
    assert keeper.call(session, Put("/a", b"x", 0), Get("/a")).answers == [b"1", b"%d %d 1 0 x" % (T0 + 1, T0 + 50)]


def test_after_a_failover_that_lost_transactions_numbers_go_on_above_them(keeper: Keeper) -> None:
    session = keeper.open()
    dump = keeper.server.dump(OWNERS_KEYS["state"])
    keeper.at(10)
    lost = keeper.call(session, Create("/a", b"", False))
    keeper.server.restore(OWNERS_KEYS["state"], 0, dump, replace=True)
    keeper.server.delete(OWNERS_KEYS["nodes"], OWNERS_KEYS["tree"])
    keeper.at(2_000)
    again = keeper.call(session, Create("/a", b"", False))
    assert again.number > lost.number, "by the clock, for who has seen nothing of them"
    assert again.era == lost.era == 0


def test_who_has_seen_more_raises_the_number_and_tells_all(keeper: Keeper) -> None:
    """Where the clock of the new master is behind."""
    session = keeper.open()
    ahead = T0 + 5_000
    noted = keeper.call(session, Sync(), known=ahead)
    assert noted.number > ahead
    assert noted.era == noted.number
    assert keeper.call(session, Sync(), known=noted.number)[1:3] == (noted.number, noted.era)
    assert keeper.call(session, Create("/a", b"", False)).number > noted.number


def test_unchanged_is_answered_only_where_nothing_has_changed(keeper: Keeper) -> None:
    mine, other = keeper.open("a"), keeper.open()
    known = keeper.call(mine, Get("/w/a")).number
    assert keeper.call(mine, Get("/w/a"), unless=known).answers is None
    assert keeper.call(other, Create("/w/b", b"", True)).number > known
    assert keeper.call(mine, Get("/w/a"), unless=known).answers is not None


def test_the_end_of_a_session_is_a_change(keeper: Keeper) -> None:
    mine, _ = keeper.open("a"), keeper.open("b")
    for after_ms in (1_500, 3_000, 4_500):
        keeper.at(after_ms)
        known = keeper.call(mine, Children("/w")).number
    keeper.at(6_000)
    found = keeper.call(mine, Children("/w"), unless=known).answers
    assert found == [[1, b"/w\0a"]]


def test_a_node_is_created_once_and_only_below_a_parent(keeper: Keeper) -> None:
    session = keeper.open()
    own = b"%d %d 0 %d" % (T0 + 2, T0 + 2, session)
    made = keeper.call(session, Create("/a", b"", False), Create("/a/b", b"1", True), Create("/a/b", b"2", True))
    assert made.answers == [b"%d %d 0 0" % (T0 + 1, T0 + 1), own, None]
    assert keeper.call(session, Create("/none/b", b"", True), Look("/none/b")).answers == [None, None]
    assert keeper.call(session, Get("/a/b"), Children("/a")).answers == [own + b" 1", [1, b"/a\0b"]]


def test_own_children_are_listed_and_the_others_counted(keeper: Keeper) -> None:
    session, _ = keeper.open("a"), keeper.open("b")
    keeper.call(session, Create("/ww", b"", False), Create("/ww/c", b"", True))
    listed = keeper.call(session, *(Children(path, own=True) for path in ("/w", "/ww", "/none"))).answers
    assert listed == [[2, b"%d\0/w/a" % session], [1, b"%d\0/ww/c" % session], None]


def test_a_node_is_changed_and_deleted_only_in_its_version_and_with_its_guard(keeper: Keeper) -> None:
    session = keeper.open("a")
    assert keeper.call(session, Put("/w/a", b"x", 1), Put("/w/a", b"x", 0)).answers == [b"0", b"1"]
    releases = (Release("/w/a", "/none"), Release("/w/a", "/w", 0), Release("/w/none", "/w"), Release("/w/a", "/w", 1))
    assert keeper.call(session, *releases).answers == [b"0", b"0", b"1", b"1"]
    assert keeper.names(session) == []


def test_a_release_that_arrives_late_deletes_no_later_node(keeper: Keeper) -> None:
    """A call that got no reply is not taken back: its packet may arrive after those of a later connection."""
    first, second = keeper.open("a"), keeper.open("b")

    def created(session: int) -> int:
        return int(keeper.call(session, Create("/w/x", b"", True)).answers[0].split(b" ")[0])

    late = Release("/w/x", "/w/a", epoch=created(first))
    assert keeper.call(first, late).answers == [b"1"]
    owner = Release("/w/x", "/w/b", epoch=created(second))
    for release in (late, Release("/w/x", "/w/a"), owner):
        assert keeper.call(first, release).answers == [b"0"]
    assert keeper.names(second) == ["a", "b", "x"], "the session that made it lives"
    assert keeper.call(second, owner).answers == [b"1"]
    own = Release("/w/x", "/w/a", epoch=created(first))
    assert keeper.call(first, late, own).answers == [b"0", b"1"], "its own node, but an earlier one"


def test_changes_are_hinted_and_contacts_are_not(keeper: Keeper) -> None:
    session = keeper.open()
    assert keeper.hints() == []
    number = keeper.call(session, Create("/a", b"", False), Put("/a", b"x", 0)).number
    assert keeper.hints() == [number]
    keeper.call(session, Sync(), Look("/a"), Create("/a", b"", False), Put("/a", b"x", 0), Release("/b", "/a"))
    assert keeper.hints() == []


def test_a_session_that_ends_itself_leaves_nothing_behind(keeper: Keeper) -> None:
    session, other = keeper.open("a"), keeper.open("b")
    keeper.hints()
    keeper.call(session, timeout_ms=0)
    assert len(keeper.hints()) == 1
    assert keeper.names(other) == ["b"]
    assert [each.split(b"\0")[1] for each in keeper.server.zrange(OWNERS_KEYS["held"], 0, -1)] == [b"/w/b"]
    for key in ("sessions", "timeouts"):
        assert keeper.server.zrange(OWNERS_KEYS[key], 0, -1) == [str(other).encode()]


def test_the_nodes_of_a_large_session_go_in_several_calls(keeper: Keeper) -> None:
    session, other = keeper.open("a"), keeper.open()
    for start in range(0, 3_000, 1_000):
        keeper.call(session, *(Create(f"/w/{start + n}", b"", True) for n in range(1_000)))
    keeper.call(session, timeout_ms=0)
    assert keeper.server.zcard(OWNERS_KEYS["held"]) == 3_001 - MOST_AT_ONCE
    assert keeper.names(other) == []
    assert keeper.server.zcard(OWNERS_KEYS["held"]) == 0
    assert keeper.call(session, Sync()).session == 0


def test_on_a_full_redis_sessions_live_and_slots_change_hands(keeper: Keeper) -> None:
    session = keeper.open("a")
    keeper.server.config_set("maxmemory", 1)
    try:
        assert keeper.call(session, Create("/w/b", b"", True)).answers[0]
        assert keeper.call(session, Release("/w/b", "/w/a")).answers == [b"1"]
    finally:
        keeper.server.config_set("maxmemory", 0)


@pytest.mark.parametrize("name", ["nodes", "tree", "held", "sessions", "timeouts", "state"])
def test_a_key_of_a_foreign_type_is_refused_before_anything_is_written(keeper: Keeper, name: str) -> None:
    keeper.server.set(OWNERS_KEYS[name], "foreign")
    with pytest.raises(Exception, match="WRONGTYPE"):
        keeper.open()
    assert [each for each in OWNERS_KEYS.values() if keeper.server.exists(each)] == [OWNERS_KEYS[name]]
