"""A Redis Cluster gets made from whatever state it is in, and counts as ready only when it is complete."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rmq._io.backend import THREADS
from rmq._io.wire import Wire
from rmq.errors import RedisUnavailableError
from tests.support.core import Address, Durability, create_cluster, make_router, parse_url
from tests.support.servers import RedisServer, redis_binary
from tests.support.topologies import free_cluster_port
from tests.support.waiting import wait_until

SETTINGS = (
    "cluster-enabled yes",
    "cluster-node-timeout 2000",
    "cluster-require-full-coverage no",
    "repl-diskless-sync-delay 0",
    "appendonly yes",
)
COMMANDS = 3 + 3 + 5 + 3
"""Epoch and hash slots of three masters, five meetings, three replicas."""


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RedisServer]]:
    made: list[RedisServer] = []
    try:
        made += [RedisServer(SETTINGS, port=free_cluster_port()) for _ in range(6)]
        yield made
    finally:
        for server in made:
            server.stop()


@pytest.fixture
def blank(servers: list[RedisServer]) -> list[RedisServer]:
    """Six servers that know nothing of one another."""
    for server in servers:
        if not server.running:
            server.start()
        with server.connect() as client:
            with suppress(redis.ReadOnlyError):
                client.flushall()
            client.execute_command("CLUSTER", "RESET", "HARD")
            client.flushall()
    return servers


def addresses(servers: list[RedisServer]) -> tuple[list[Address], list[Address]]:
    """Masters and replicas."""
    made = [Address("127.0.0.1", server.port) for server in servers]
    return made[:3], made[3:]


def assert_complete(servers: list[RedisServer]) -> None:
    """Look with other eyes than `create_cluster` does."""
    replicas = 0
    for server in servers:
        with server.connect() as client:
            info = client.cluster("INFO")
            assert (info["cluster_state"], info["cluster_known_nodes"], info["cluster_size"]) == ("ok", "6", "3")
            assert info["cluster_slots_ok"] == "16384"
            replication = client.info("replication")
            replicas += replication["connected_slaves"]
            assert replication["role"] == "master" or replication["master_link_status"] == "up"
    assert replicas == 3


@pytest.mark.parametrize("last", range(COMMANDS + 1))
def test_a_set_up_that_is_cut_off_anywhere_is_completed_by_the_next(
    last: int, blank: list[RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    call = Wire.call

    def counted(wire: Wire, *command: str | int) -> object:
        change = command[0] == "CLUSTER" and command[1] not in ("NODES", "INFO")
        if change and len(sent) == last:
            raise Killed
        reply = call(wire, *command)
        if change:
            sent.append(str(command[1]))
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(Wire, "call", counted)
        with suppress(Killed):
            create_cluster(*addresses(blank))
    assert len(sent) == last or last == COMMANDS  # meetings may be repeated, nothing else
    create_cluster(*addresses(blank))
    assert_complete(blank)
    monkeypatch.setattr(Wire, "call", counted)
    sent.clear()
    last = 0
    create_cluster(*addresses(blank))  # complete: not one command more


def test_a_cluster_that_has_failed_over_is_left_as_it_is(blank: list[RedisServer]) -> None:
    create_cluster(*addresses(blank))
    with blank[3].connect() as replica:
        replica.execute_command("CLUSTER", "FAILOVER")
        wait_until(lambda: replica.info("replication")["role"] == "master")
    create_cluster(*addresses(blank))
    assert_complete(blank)
    with blank[3].connect() as replica:
        assert replica.info("replication")["role"] == "master"


def test_it_waits_for_servers_that_load_their_data(blank: list[RedisServer], monkeypatch: pytest.MonkeyPatch) -> None:
    create_cluster(*addresses(blank))
    for server in blank:
        server.config_set("cluster-node-timeout", 60_000)  # no failover meanwhile
    with blank[0].connect() as client:
        key = next(f"{{{number}}}" for number in range(1000) if client.cluster("KEYSLOT", f"{{{number}}}") < 5461)
        client.mset({f"{key}{number}": os.urandom(40_000) for number in range(500)})
        client.bgrewriteaof()  # the delay below is for the RDB format; a loading server looks up after each 2 MB
        wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
    blank[0].halt()
    command = [redis_binary(), blank[0].folder / "redis.conf", "--key-load-delay", "18000"]
    process = subprocess.Popen(command, cwd=blank[0].folder, stdout=subprocess.DEVNULL)  # `start` would wait for it
    try:
        wait_until(lambda: loads(blank[0]))
        late_s, told = 0.0, 0

        def waiting(lacking: str) -> None:
            """Let it load for longer than the limit, as far as the set-up can see: that does not count."""
            nonlocal late_s, told
            if "is loading its data" in lacking:
                late_s, told = late_s + 200, told + 1
                if told == 2:
                    assert_others_are_asked(blank)

        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late_s, sleep=time.sleep)
        monkeypatch.setattr("rmq._processes.redis_cluster.time", clock)
        create_cluster(*addresses(blank), 300.0, waiting)
        assert told >= 2
        with blank[0].connect() as client:
            assert client.dbsize() == 500
    finally:
        for server in blank[1:]:
            server.config_set("cluster-node-timeout", 2_000)
        process.terminate()
        process.wait()


def assert_others_are_asked(servers: list[RedisServer]) -> None:
    """Clients that meet the loading server first learn from another one who holds what."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers[:2])
    for _ in range(8):  # who is asked first is drawn
        router = make_router(parse_url(f"redis+cluster://{hosts}"), 2.0, Durability(), THREADS)
        router.refresh()
        router.close()


def loads(server: RedisServer) -> bool:
    with redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as client:
        try:
            return not client.ping()
        except redis.BusyLoadingError:
            return True
        except (redis.ConnectionError, redis.TimeoutError):
            return False


def test_servers_on_new_ports_find_each_other_again(blank: list[RedisServer]) -> None:
    create_cluster(*addresses(blank))
    for server in blank:
        server.halt()
    for server in blank:
        server.port = free_cluster_port()
        server.start()
    create_cluster(*addresses(blank))
    assert_complete(blank)


def test_a_server_that_is_away_is_waited_for_and_named(blank: list[RedisServer]) -> None:
    blank[4].halt()
    with pytest.raises(
        RedisUnavailableError, match=f"was not ready in time: Redis at 127.0.0.1:{blank[4].port} does not"
    ):
        create_cluster(*addresses(blank), 0.5)
    blank[4].start()
    create_cluster(*addresses(blank))
    assert_complete(blank)


def test_servers_of_another_cluster_are_refused(blank: list[RedisServer]) -> None:
    masters, others = addresses(blank)
    create_cluster(masters)
    with pytest.raises(RedisUnavailableError, match=r"belongs to a cluster with another node, 127\.0\.0\.1:\d+"):
        create_cluster(masters[:2], others)


def test_a_server_without_cluster_mode_is_refused_at_once() -> None:
    with RedisServer() as server, pytest.raises(RedisUnavailableError, match="cluster support disabled"):
        create_cluster([Address("127.0.0.1", server.port)])


def test_the_command_tells_what_it_waits_for(blank: list[RedisServer]) -> None:
    lists = [",".join(map(str, part)) for part in addresses(blank)]
    command = [sys.executable, "-m", "rmq._processes.redis_cluster", *lists]
    for _ in range(2):
        done = subprocess.run(
            command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
    assert "waiting" not in done.stderr
    assert_complete(blank)
