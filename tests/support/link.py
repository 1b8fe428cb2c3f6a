"""A TCP connection that can be cut or slow: passes any bytes, where `proxy.py` understands Redis."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

_LIMIT_S = 60.0


class Link:
    """Listens on a free port of 127.0.0.1 and passes everything on, until it is cut. May be used from any thread.

    Args:
        port: The port of the server behind it.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._open = True
        self._late_s = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break all connections, and every new one at once, until `mend`."""
        self._open = False
        self._call(self._abort())

    def mend(self) -> None:
        """Let connections through again."""
        self._open = True

    def slow(self, seconds: float) -> None:
        """Pass on what comes in either direction so much later; 0: at once."""
        self._late_s = seconds

    def close(self) -> None:
        """Cut everything and end."""
        self.cut()
        self._server.close()
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LIMIT_S)
        self._loop.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_LIMIT_S)

    async def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _end(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with suppress(OSError):
                if self._open:
                    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
                    self._writers.add(far_writer)
                    try:
                        there = asyncio.ensure_future(self._pass(reader, far_writer))
                        back = asyncio.ensure_future(self._pass(far_reader, writer))
                        await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
                        there.cancel()
                        back.cancel()
                    finally:
                        far_writer.transport.abort()
                        self._writers.discard(far_writer)
        finally:
            writer.transport.abort()
            self._writers.discard(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if self._late_s:
                    await asyncio.sleep(self._late_s)
                writer.write(data)
                await writer.drain()


class LaggingLink:
    """A way to the master over which nothing reaches the replica any more after `hold`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._held = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def hold(self) -> None:
        """Pass nothing on to the replica from now on."""
        self._held.set()

    def close(self) -> None:
        """End the link; the threads end with their sockets."""
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for each in (self._listener, *self._sockets):
            each.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += (client, server)
                self._start(self._pump, server, client, True)
                self._start(self._pump, client, server, False)

    def _pump(self, source: socket.socket, target: socket.socket, hold: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if hold and self._held.is_set():
                    return
                target.sendall(data)
