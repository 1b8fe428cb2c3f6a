"""What RMQ uses of redis-py, kazoo and asyncio that is no public name: an update that takes it away fails here."""

from __future__ import annotations

import ast
import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis import ConnectionPool
from redis.asyncio import ConnectionPool as AsyncConnectionPool

from rmq._ownership.zookeeper import ZooKeeperClient
from tests.support.waiting import wait_until

RMQ = Path(__file__).parents[3] / "rmq"
USED = {
    "rmq/_io/wire.py": {"_sock"},
    "rmq/aio/backend.py": {"_reader", "_writer", "_sock", "_closed"},
    "rmq/_ownership/zookeeper.py": {"_connection", "_connect"},
}
"""File -> the private attributes of objects of redis-py, kazoo and asyncio's transports in it."""
GRANTED_MS = 9_000


def private_attributes(path: Path) -> set[str]:
    """Return the private attributes of objects other than `self` and `cls`, but for `_replace` of a named tuple."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in {"self", "cls"}) and node.attr != "_replace":
                found.add(node.attr)
    return found


def test_no_other_private_attribute_of_the_libraries_is_used() -> None:
    importing = {
        str(path.relative_to(RMQ.parent)): private_attributes(path)
        for path in RMQ.rglob("*.py")
        if any(line.startswith(("import redis", "from redis", "from kazoo", "import kazoo"))
               for line in path.read_text("utf-8").splitlines())
    }  # fmt: skip
    assert {path: names for path, names in importing.items() if names} == USED


def test_a_connection_of_redis_py_has_its_socket(redis_url: str) -> None:
    connection: Any = ConnectionPool.from_url(redis_url).make_connection()
    assert connection._sock is None
    connection.connect()
    assert isinstance(connection._sock, socket.socket)
    connection.disconnect()


def test_an_asyncio_connection_of_redis_py_has_its_streams(redis_url: str) -> None:
    async def streams() -> tuple[Any, ...]:
        connection: Any = AsyncConnectionPool.from_url(redis_url).make_connection()
        before = connection._reader, connection._writer
        await connection.connect()
        found = connection._reader, connection._writer
        assert isinstance(connection._writer.transport._sock, socket.socket)
        await connection.disconnect()
        return (*before, *found)

    no_reader, no_writer, reader, writer = asyncio.run(streams())
    assert no_reader is None
    assert no_writer is None
    assert isinstance(reader, asyncio.StreamReader)
    assert isinstance(writer, asyncio.StreamWriter)


@contextmanager
def zookeeper_that_greets() -> Iterator[str]:
    """Give the address of a server that answers ZooKeeper's handshake with a session timeout of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.recv(1_024)
                password = b"p" * 16
                reply = struct.pack("!iiqi", 0, GRANTED_MS, 7, len(password)) + password + b"\0"
                connection.sendall(struct.pack("!i", len(reply)) + reply)
                while connection.recv(1_024):
                    pass

        greeter = threading.Thread(target=serve)
        greeter.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    greeter.join(10)


def test_the_handshake_of_kazoo_tells_the_session_timeout_that_was_granted() -> None:
    with zookeeper_that_greets() as address:
        zookeeper = ZooKeeperClient(address, "", 6.0, lambda: None, lambda: None)
        zookeeper.start()
        try:
            wait_until(lambda: zookeeper.session_timeout_s == GRANTED_MS / 1000, 20)
        finally:
            zookeeper.stop()
