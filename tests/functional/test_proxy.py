"""The proxy and the server of the test support do what they say, against a real redis-server."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def direct(server: RedisServer) -> Iterator[redis.Redis]:
    with server.connect() as client:
        client.flushall()
        yield client


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[redis.Redis]:
    """A client through the proxy that is connected already and repeats nothing."""
    with redis.Redis.from_url(proxy.url, socket_timeout=2.0) as client:
        client.set_retry(Retry(NoBackoff(), 0))
        client.ping()
        yield client


def test_without_faults_everything_passes(proxy: Proxy, client: Any) -> None:
    value = b"x\r\n" * 100_000
    pipeline = client.pipeline(transaction=True).set("big", value).get("big").incr("n")
    assert pipeline.execute() == [True, value, 1]
    assert proxy.commands("SET") == proxy.commands("get") == 1
    assert proxy.accepted == 1


def test_messages_of_subscriptions_pass(client: Any, direct: Any) -> None:
    with client.pubsub() as subscription:
        subscription.subscribe("a", "b")
        wait_until(lambda: direct.pubsub_numsub("b")[0][1] == 1)
        direct.publish("b", "hello")
        assert wait_until(lambda: subscription.get_message(True))["data"] == b"hello"


def test_replies_are_delayed(proxy: Proxy, client: redis.Redis) -> None:
    proxy.delay_replies(0.3)
    start = time.monotonic()
    pipeline = client.pipeline(transaction=False)
    for _ in range(200):
        pipeline.incr("n")
    pipeline.execute()
    assert 0.3 <= time.monotonic() - start < 30  # together, not one after the other
    proxy.delay_replies(3_600, command="INCRBY")
    client.ping()
    proxy.delay_replies(0.2, command="INCRBY")
    start = time.monotonic()
    client.incr("n")
    assert time.monotonic() - start >= 0.2
    proxy.delay_replies(5, 6, seed=1)
    with pytest.raises(redis.TimeoutError):
        client.ping()


def test_a_dropped_reply_belongs_to_a_command_that_was_carried_out(
    proxy: Proxy, client: redis.Redis, direct: redis.Redis
) -> None:
    proxy.drop_replies(1, command="INCRBY")
    with pytest.raises(redis.TimeoutError):
        client.incr("n")
    assert direct.get("n") == b"1"
    assert proxy.dropped == 1
    assert client.incr("n") == 2


def test_all_replies_are_dropped_until_normal(proxy: Proxy, client: redis.Redis) -> None:
    proxy.drop_replies()
    for _ in range(2):
        with pytest.raises(redis.TimeoutError):
            client.ping()
    proxy.normal()
    assert client.ping()


def test_the_connection_is_cut_before_the_nth_reply(proxy: Proxy, client: redis.Redis, direct: redis.Redis) -> None:
    proxy.cut_before_reply(2, command="INCRBY")
    assert client.incr("n") == 1
    with pytest.raises(redis.ConnectionError):
        client.incr("n")
    assert direct.get("n") == b"2"
    assert client.incr("n") == 3  # on a new connection
    assert (proxy.cuts, proxy.accepted) == (1, 2)


def test_the_connection_is_cut_inside_a_reply(proxy: Proxy, client: redis.Redis) -> None:
    client.set("text", "0123456789")
    proxy.cut_after_bytes(8)  # "$10\r\n012"
    with pytest.raises(redis.ConnectionError):
        client.get("text")
    assert client.get("text") == b"0123456789"


def test_connections_are_cut_now(proxy: Proxy, client: redis.Redis) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as connection:
        wait_until(lambda: proxy.accepted == 2)
        connection.sendall(b"*1\r\n$4\r\nPING\r\n")
        assert connection.recv(100) == b"+PONG\r\n"
        proxy.cut_now()
        assert proxy.cuts == 2
        with suppress(ConnectionResetError):
            assert connection.recv(100) == b""
    assert client.ping()


def test_new_connections_are_refused_and_old_ones_go_on(proxy: Proxy, client: redis.Redis) -> None:
    proxy.refuse_connections()
    assert client.ping()
    with redis.Redis.from_url(proxy.url, retry=None) as other, pytest.raises(redis.ConnectionError, match="refused"):
        other.ping()
    proxy.normal()
    with redis.Redis.from_url(proxy.url) as other:
        assert other.ping()


def test_a_dead_server_hangs_up_on_clients() -> None:
    with RedisServer() as server, Proxy(server.port) as proxy, redis.Redis.from_url(proxy.url) as client:
        client.set_retry(Retry(NoBackoff(), 0))
        assert client.ping()
        server.kill()
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                client.ping()
        server.start()
        assert client.ping()


def test_a_server_restarts_on_its_port_with_what_it_persists() -> None:
    with RedisServer(["appendonly yes", "appendfsync always"], unix_socket=True) as server, server.connect() as client:
        port = server.port
        client.set("kept", 1)
        server.restart()
        assert client.get("kept") == b"1"
        server.kill()
        server.start()
        assert (client.get("kept"), server.port) == (b"1", port)
        server.config_set("maxmemory", 12_345_678)
        assert client.config_get("maxmemory")["maxmemory"] == "12345678"
    assert not server.folder.exists()


def test_a_paused_server_accepts_and_is_silent() -> None:
    with RedisServer(tcp=False, unix_socket=True) as server, server.connect(socket_timeout=0.2) as client:
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        with server.connect() as patient:
            assert patient.ping()


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(RuntimeError, match="no-such-option"):
        RedisServer(["no-such-option 1"])


def test_no_server_outlives_a_killed_test_run() -> None:
    code = """if True:
        import sys, time
        from tests.support.servers import RedisServer
        server = RedisServer()
        print(server.pid, server.folder, flush=True)
        time.sleep(60)"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pid, folder = run.stdout.readline().split()
        server = psutil.Process(int(pid))
        run.kill()
        wait_until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)
    shutil.rmtree(folder)
