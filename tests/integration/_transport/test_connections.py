"""One server by every kind of URL, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from rmq.errors import (
    ClientClosedError,
    ForkedClientError,
    InvalidUrlError,
    RedisUnavailableError,
    UnsafeRedisError,
)
from tests.support.clients import drain, stats_of
from tests.support.core import Connections, parse_url
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer, free_port
from tests.support.waiting import wait_until

TOPIC = Topic("connections", TopicType.PRIORITY, slots=2)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server of our own, with a password for a user."""
    with RedisServer(["user guest on >se:cr/et ~* &* +@all", "databases 4"], unix_socket=True) as server:
        yield server


@pytest.fixture(autouse=True)
def clean(server: RedisServer) -> None:
    with server.connect() as client:
        client.flushall()


def works(client: RmqClient) -> bool:
    client.producer(TOPIC).send(PriorityMessage("a", 100))
    with client.consumer(TOPIC) as consumer:
        assert drain(consumer, 0) == ["a"]
    return stats_of(client, TOPIC).total("acked") == 1


def test_tcp_unix_socket_and_database(server: RedisServer) -> None:
    urls = [f"redis://127.0.0.1:{server.port}", f"unix://{server.socket_path}?db=1"]
    urls += [f"redis://localhost:{server.port}/2", f"redis://guest:se%3Acr%2Fet@127.0.0.1:{server.port}/3"]
    for url in urls:
        with RmqClient(url) as client:
            assert works(client)
            assert client.url == url
            assert "se%3A" not in client.shown_url


def test_wrong_password_and_wrong_database_are_refused_at_once(server: RedisServer) -> None:
    where = f"127.0.0.1:{server.port}"
    refusals = {f"redis://guest:wrong@{where}": "WRONGPASS", f"redis://{where}/77": "index is out of range"}
    for url, reason in refusals.items():
        with RmqClient(url, deadline_s=3_600) as client:
            with pytest.raises(RedisUnavailableError, match=reason) as caught:
                client.topics()
            with pytest.raises(RedisUnavailableError, match=reason):
                client.producer(TOPIC)
        assert "wrong@" not in str(caught.value)


def test_a_password_is_asked_for(server: RedisServer) -> None:
    server.config_set("requirepass", "needed")
    try:
        with RmqClient(server.url, deadline_s=3_600) as client:
            with pytest.raises(RedisUnavailableError, match="Authentication required"):
                client.topics()
        with RmqClient(f"redis://:needed@127.0.0.1:{server.port}") as client:
            assert works(client)
    finally:
        with redis.Redis(port=server.port, password="needed") as admin:
            admin.config_set("requirepass", "")


@pytest.mark.parametrize("url", ["redis://h:notaport", "unix://", "http://x", "redis://127.0.0.1?socket_timeout=soon"])
def test_urls_that_cannot_be_used(url: str) -> None:
    with pytest.raises(InvalidUrlError):
        RmqClient(url)


def test_nobody_there() -> None:
    with RmqClient(f"redis://127.0.0.1:{free_port()}", deadline_s=0.2) as client:
        with pytest.raises(RedisUnavailableError, match=r"no answer from Redis at redis://127\.0\.0\.1"):
            client.topics()
    with RmqClient("unix:///no/such/socket", deadline_s=0.2) as client, pytest.raises(RedisUnavailableError):
        client.topics()


def test_an_eviction_policy_that_drops_slots_is_refused(server: RedisServer) -> None:
    """Pitfall 11."""
    for policy in ("allkeys-lru", "allkeys-random"):
        server.config_set("maxmemory-policy", policy)
        try:
            with RmqClient(server.url) as client, pytest.raises(UnsafeRedisError, match=policy):
                client.producer(TOPIC)
        finally:
            server.config_set("maxmemory-policy", "noeviction")
    server.config_set("maxmemory-policy", "volatile-lru")  # none of our keys has an expiry
    with RmqClient(server.url) as client:
        assert works(client)
    server.config_set("maxmemory-policy", "noeviction")


def test_a_server_that_is_busy_with_a_script_is_waited_for(server: RedisServer) -> None:
    server.config_set("lua-time-limit", 50)
    busy = server.connect(socket_timeout=30)

    def block() -> None:
        with pytest.raises(redis.ResponseError):
            busy.eval("while true do end", 0)

    with RmqClient(server.url, timeout_s=20, deadline_s=20) as client, server.connect() as admin:
        thread = threading.Thread(target=block)
        thread.start()

        def is_busy() -> bool:
            try:
                admin.ping()
            except redis.ResponseError:
                return True
            return False

        wait_until(is_busy)
        results: list[bool] = []
        worker = threading.Thread(target=lambda: results.append(works(client)))
        worker.start()
        worker.join(0.3)
        assert worker.is_alive()
        admin.script_kill()
        worker.join(20)
        thread.join(20)
        assert results == [True]
    busy.close()


def test_a_closed_client(server: RedisServer) -> None:
    client = RmqClient(server.url)
    producer, consumer = client.producer(TOPIC), client.consumer(TOPIC)
    client.close()
    client.close()
    with pytest.raises(ClientClosedError):
        client.topics()
    with pytest.raises(ClientClosedError):
        producer.send(PriorityMessage("a", 100))
    with pytest.raises(ClientClosedError):
        consumer.poll()


def test_connections_are_used_again_and_closed(server: RedisServer) -> None:
    with Proxy(server.port) as proxy:
        with RmqClient(proxy.url) as client:
            for _ in range(20):
                works_again = client.producer(TOPIC).send(PriorityMessage("a", 100))
                assert works_again.accepted == 1
            client.inspect(TOPIC).stats([0])  # the server has the script from here on
            assert proxy.accepted == 1
            proxy.cut_now()  # noticed before it is used: nothing is sent into the void
            commands = proxy.commands("EVALSHA")
            client.inspect(TOPIC).stats([0])
            assert (proxy.accepted, proxy.commands("EVALSHA")) == (2, commands + 1)
        with server.connect() as admin:
            wait_until(lambda: len(admin.client_list()) == 1)  # pyright: ignore[reportArgumentType]


def test_a_closed_client_starts_nothing(server: RedisServer) -> None:
    client = RmqClient(server.url)
    client.producer(TOPIC)
    client.listener(TOPIC)(lambda delivery: None)
    client.close()
    for start in (client.start, client.record_history):
        with pytest.raises(ClientClosedError):
            start()


def test_after_a_fork_the_child_is_told(server: RedisServer) -> None:
    """Pitfall 5. The child's errors go through a pipe, and it leaves without the parent's clean-up."""
    with RmqClient(server.url) as client:
        producer, consumer = client.producer(TOPIC), client.consumer(TOPIC)
        client.listener(TOPIC)(lambda delivery: None)
        assert consumer.poll(timeout=0.05) == []
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                send = partial(producer.send, PriorityMessage("a", 100))
                for use in (client.topics, send, consumer.poll, client.start, client.record_history):
                    try:
                        use()
                    except ForkedClientError:
                        os.write(writer, b"told ")
                client.close()  # must not hang up on the parent
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        assert os.read(reader, 100) == b"told " * 5
        os.close(reader)
        assert works(client)


def test_a_fork_is_told_though_another_thread_polled_meanwhile(server: RedisServer) -> None:
    """Nobody in the child gives back the lock that the polling thread held. Pitfall 5."""
    with RmqClient(server.url) as client:
        consumer, met = client.consumer(TOPIC), list[BaseException]()

        def wait() -> None:
            try:
                consumer.poll(1, 3_600.0)
            except BaseException as error:
                met.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: consumer._hints.connected)  # pyright: ignore[reportPrivateUsage]
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                consumer.poll()
            except ForkedClientError:
                started_s = time.monotonic()
                consumer.close()
                os._exit(0 if time.monotonic() - started_s < 2 else 3)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert waiting.is_alive(), "the child must not hang up on the parent"
        consumer.close()
        waiting.join(60)
        assert isinstance(met[0], ClientClosedError)


# --- TLS: a forwarder in front of a plain server, so that it needs no Redis built with TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for localhost, and its key, in one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return both


@pytest.fixture
def tls_port(server: RedisServer, certificate: Path) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        plain_reader, plain_writer = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(pump(reader, plain_writer), pump(plain_reader, writer))

    async def forward(ready: Callable[[asyncio.AbstractEventLoop, asyncio.Event, int], object]) -> None:
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda *_: None)  # a refused certificate is what one of the tests wants
        forwarder = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        ready(loop, end, forwarder.sockets[0].getsockname()[1])
        await end.wait()
        forwarder.close()

    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = []
    work = forward(lambda loop, end, port: started.append((loop, end, port)))
    thread = threading.Thread(target=asyncio.run, args=(work,))
    thread.start()
    loop, end, port = wait_until(lambda: started)[0]
    yield port
    loop.call_soon_threadsafe(end.set)
    thread.join(10)


def test_tls(tls_port: int, certificate: Path) -> None:
    with RmqClient(f"rediss://localhost:{tls_port}?ssl_ca_certs={certificate}", timeout_s=10) as client:
        assert works(client)
        with client.consumer(TOPIC) as consumer:
            assert consumer.poll(timeout=0.1) == []
            client.producer(TOPIC).send(PriorityMessage("woken", 100))
            [delivery] = consumer.poll(timeout=50)
            assert delivery.ack()


def test_a_certificate_that_nobody_vouches_for_is_refused(tls_port: int) -> None:
    with RmqClient(f"rediss://localhost:{tls_port}", deadline_s=2.0) as client:
        with pytest.raises(RedisUnavailableError, match=r"(?i)certificate"):
            client.topics()


@pytest.mark.parametrize("option", ["protocol=3", "retry=5", "health_check_interval=9"])
def test_what_rmq_relies_on_stands_whatever_a_url_says(redis_server: RedisServer, option: str) -> None:
    connections = Connections(parse_url(f"{redis_server.url}?{option}"))
    assert connections.command("HGETALL", "nothing") == []  # a map where the protocol is 3
    connections.close()


def test_a_connection_that_nobody_has_needed_for_long_is_closed(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many threads may have called at once."""
    with server.connect() as plain, contextlib.closing(Connections(parse_url(server.url))) as connections:
        node = connections.wakeup_node("channel")
        wires = [node.checkout() for _ in range(5)]
        open_before = len(plain.client_list())
        for wire in wires:
            node.give_back(wire)
        monkeypatch.setattr("rmq._servers.nodes.UNUSED_S", 0.05)

        def only_one_is_left() -> bool:
            time.sleep(0.01)
            connections.command("GET", "key")
            return len(plain.client_list()) == open_before - 4

        wait_until(only_one_is_left)
