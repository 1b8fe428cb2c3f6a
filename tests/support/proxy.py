"""A TCP proxy between a client and Redis that loses, delays and cuts replies on demand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Coroutine
from typing import Any

from tests.support.faults import SUBSCRIBING, Faults
from tests.support.resp import FrameSplitter, command_name

_CHUNK_BYTES = 65_536
_CALL_LIMIT_S = 60.0


class Proxy:
    """Passes commands on at once and replies as told; starts without faults, on a free port of 127.0.0.1.

    Commands always reach Redis: a lost, cut or late reply belongs to a command that was carried out. All methods may be
    called from any thread; a fault holds for the connections that exist and for later ones, counted over all of them
    together, and a cut happens once. A fault with a `command` concerns only replies to commands of this name, as it is
    sent (redis-py's `incr` sends INCRBY).

    Args:
        port: The port of Redis.
        host: The host of Redis.

    Attributes:
        port: Where the proxy listens.
        url: The same as a URL of database 0.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self._faults = Faults()
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._commands: list[str] = []
        self._accepted = 0
        self._cuts = 0
        self._connecting: set[asyncio.Task[None]] = set()
        self._cut_rounds = 0
        self._listener: socket.socket | None = None
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._call(self._listen())
        self.url = f"redis://127.0.0.1:{self.port}/0"

    # --- faults

    def delay_replies(
        self, seconds: float, longest_seconds: float | None = None, *, seed: int = 0, command: str | None = None
    ) -> None:
        """Pass each reply on so many seconds after it arrived, or a random time between two bounds. Order is kept."""
        self._faults.delay(seconds, seconds if longest_seconds is None else longest_seconds, seed, command)

    def drop_replies(self, count: int = -1, *, command: str | None = None) -> None:
        """Swallow the next `count` replies, or all from now on; the connections stay open."""
        self._faults.drop(count, command)

    def cut_before_reply(self, nth: int = 1, *, command: str | None = None) -> None:
        """Cut the connection instead of passing on the nth reply from now; once."""
        self._faults.cut_before_reply(nth, command)

    def cut_after_bytes(self, count: int) -> None:
        """Cut the connection when exactly `count` more bytes of replies have been passed on; once."""
        self._faults.cut_after_bytes(count)

    def lead_to(self, port: int) -> None:
        """Lead new connections to another port, as a name that has moved; those that exist go on."""
        self._target = (self._target[0], port)

    def cut_now(self) -> None:
        """Cut all connections that exist; new ones work. Returns when they are cut."""
        self._call(self._cut_all())

    def refuse_connections(self) -> None:
        """Refuse new connections until `normal`; those that exist go on."""
        self._call(self._close_listener())

    def normal(self) -> None:
        """Switch all faults off and accept connections again. What was dropped stays lost."""
        self._faults.clear()
        self._call(self._listen())

    # --- what has happened

    @property
    def accepted(self) -> int:
        """How many connections were accepted."""
        with self._lock:
            return self._accepted

    @property
    def cuts(self) -> int:
        """How many connections were cut."""
        with self._lock:
            return self._cuts

    @property
    def dropped(self) -> int:
        """How many replies were swallowed."""
        return self._faults.dropped

    def commands(self, name: str | None = None) -> int:
        """How many commands were passed on: all, or those of this name."""
        with self._lock:
            return len(self._commands) if name is None else self._commands.count(name.upper())

    # --- life

    def close(self) -> None:
        """Cut everything and end the proxy. Safe to repeat."""
        if self._loop.is_closed():
            return
        self._call(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_LIMIT_S)
        self._loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside the loop's thread

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CALL_LIMIT_S)

    async def _listen(self) -> None:
        if self._listener is None:
            # on the same port again after a refusal
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        # in one step, so that a refusal or a cut finds a connection either here or not yet made
        try:
            client, _ = listener.accept()
        except OSError:  # it has gone already
            return
        client.setblocking(False)
        with self._lock:
            self._accepted += 1
        task = self._loop.create_task(self._serve(client, self._cut_rounds))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _close_listener(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def _cut_all(self) -> None:
        self._cut_rounds += 1
        for connection in list(self._connections):
            connection.abort()
            self.count_cut()

    async def _shut_down(self) -> None:
        await self._close_listener()
        for connection in list(self._connections):
            connection.abort()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, client: socket.socket, cut_rounds: int) -> None:
        reader, writer = await asyncio.open_connection(sock=client)
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:  # Redis is down: hang up
            writer.transport.abort()
            return
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        connection = _Connection(self, reader, writer, server_reader, server_writer)
        if cut_rounds != self._cut_rounds:  # cut before it was through
            connection.abort()
            return
        self._connections.add(connection)
        try:
            await connection.run(self._faults)
        finally:
            connection.abort()
            self._connections.discard(connection)

    def count_cut(self) -> None:
        """Note that a connection was cut (for the connections)."""
        with self._lock:
            self._cuts += 1

    def count_command(self, name: str) -> None:
        """Note that a command was passed on (for the connections)."""
        with self._lock:
            self._commands.append(name)


class _Connection:
    """One client's connection and its twin to Redis."""

    def __init__(
        self,
        proxy: Proxy,
        client_reader: asyncio.StreamReader,
        client_writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._client_reader, self._client_writer = client_reader, client_writer
        self._server_reader, self._server_writer = server_reader, server_writer
        self._unanswered: deque[str] = deque()
        self._subscribed = ""  # the command after which Redis sends by itself, so that replies no longer match commands
        self._arrived: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def run(self, faults: Faults) -> None:
        """Pass bytes to and fro until one side ends or the connection is cut."""
        works = (self._pass_commands(), self._take_replies(), self._pass_replies(faults))
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, OSError):
                    raise result

    def abort(self) -> None:
        """Hang up on both sides, without waiting for anything."""
        self._client_writer.transport.abort()
        self._server_writer.transport.abort()

    async def _pass_commands(self) -> None:
        splitter = FrameSplitter()
        while data := await self._client_reader.read(_CHUNK_BYTES):
            for frame in splitter.feed(data):
                name = command_name(frame)
                self._unanswered.append(name)
                if name in SUBSCRIBING:
                    self._subscribed = name
                self._proxy.count_command(name)
                self._server_writer.write(frame)
            await self._server_writer.drain()

    async def _take_replies(self) -> None:
        splitter = FrameSplitter()
        clock = asyncio.get_running_loop().time
        while data := await self._server_reader.read(_CHUNK_BYTES):
            for reply in splitter.feed(data):
                self._arrived.put_nowait((clock(), reply))
        await self._arrived.join()  # Redis has ended: its last replies still count

    async def _pass_replies(self, faults: Faults) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            arrived, reply = await self._arrived.get()
            command = self._subscribed or (self._unanswered.popleft() if self._unanswered else "")
            verdict = faults.decide(reply, command)
            if (wait_s := arrived + verdict.delay_s - clock()) > 0:
                await asyncio.sleep(wait_s)
            self._client_writer.write(verdict.forward)
            await self._client_writer.drain()
            self._arrived.task_done()
            if verdict.cut:
                await self._hang_up()
                return

    async def _hang_up(self) -> None:
        """Close in order, so that the bytes before the cut arrive."""
        self._proxy.count_cut()
        with contextlib.suppress(OSError):
            self._client_writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
