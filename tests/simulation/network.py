"""Connections between simulated processes and one real Redis: late, reordered between connections, stalled and cut.

A request travels, is carried out by the real server at one moment, and its replies travel back. As with TCP, what one
connection carries stays in order, and what was sent before a process closed its end or died still arrives; what is on
its way when a connection is cut is lost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

import hiredis

from rmq._io.wire import NOTHING, Argument, ReplyError, WireBrokenError, WireTimeoutError, pack
from tests.simulation.server import Server
from tests.simulation.world import Process, Waiter, World

LEAST_S, MOST_S = 0.000_05, 0.001
"""How long a message travels on a good day."""

_END = object()
"""Stands for the end of a connection."""


class Link:
    """One connection: what travels over it, and what has arrived at the client.

    Attributes:
        process: Whose connection it is.
        cut: Whether nothing travels any more.
        arrived: Replies, and the end, that the client has not read.
        channels: What the client has subscribed to.
        watchers: Who waits for something to arrive.
    """

    def __init__(self, network: Network, process: Process, number: int) -> None:
        self.network = network
        self.process = process
        self.number = number
        self.cut = False
        self.closed = False
        self.arrived: deque[Any] = deque()
        self.channels: set[bytes] = set()
        self.watchers: list[Waiter] = []
        self._there_s = self._back_s = 0.0

    def send(self, request: bytes) -> None:
        """Let a request travel."""
        task = self.network.world.current
        doing = None if self.process.dead or task is None or task.doing is None else task.doing.sharing(self.process)
        self._there_s = self._travel(self._there_s, lambda: self._reach(request, doing))

    def answer(self, reply: Any) -> None:
        """Let a reply travel."""
        self._back_s = self._travel(self._back_s, lambda: self._arrive(reply))

    def confirm(self, replicas: int, wait_s: float) -> None:
        """Answer a WAIT: so many replicas have all that was written; or after its time, none has."""
        self._back_s = max(self._back_s, self.network.world.now_s + wait_s)
        self.answer(0 if wait_s else replicas)

    def break_off(self) -> None:
        """Cut it; the client notices soon."""
        if not self.cut:
            self.cut = True
            self.network.forget(self)
            self.network.world.at(self.network.travel_s(), self.end)

    def end(self) -> None:
        """Let the client see the end."""
        self.arrived.append(_END)
        self._tell()

    def _travel(self, last_s: float, action: Callable[[], object]) -> float:
        """Have something arrive, behind what was sent before; return when."""
        world = self.network.world
        at_s = max(last_s, world.now_s + self.network.travel_s())
        world.at(at_s - world.now_s, action)
        self.network.quiet_from_s = max(self.network.quiet_from_s, at_s)
        return at_s

    def _stalled(self, again: Callable[[], object]) -> bool:
        """Return whether nothing gets through at present; then it arrives later."""
        wait_s = self.network.stalled_s(self.process)
        if wait_s > 0:
            self.network.world.at(wait_s, again)
            self.network.quiet_from_s = max(self.network.quiet_from_s, self.network.world.now_s + wait_s)
        return wait_s > 0

    def _reach(self, request: bytes, doing: Any) -> None:
        if not self.cut and not self._stalled(lambda: self._reach(request, doing)):
            self.network.carry_out(self, request, doing)

    def _arrive(self, reply: Any) -> None:
        if self.cut or self.closed or self._stalled(lambda: self._arrive(reply)):
            return
        self.arrived.append(reply)
        self._tell()

    def _tell(self) -> None:
        watchers, self.watchers = self.watchers, []
        for waiter in watchers:
            waiter.wake()


class Network:
    """All connections to one server.

    Args:
        world: The scheduler and the clock.
        server: The real Redis behind them.
        seed: What the travelling times are drawn from.

    Attributes:
        slowness: What each travelling time is multiplied by.
        down: Whether the server does not run.
        lagging: Whether the replica that will take over does not get what is written.
        quiet_from_s: When the last of what is on its way has arrived.
        sent: How many commands each process has sent, by its name.
        infos: How many of them were INFO, which the simulation itself sends, too.
        loss: Decides before each script call what becomes of it; see `Loss` of the faults.
    """

    def __init__(self, world: World, server: Server, seed: int) -> None:
        self.world = world
        self.server = server
        self.slowness = 1.0
        self.down = self.lagging = False
        self.quiet_from_s = 0.0
        self.loses: Callable[[Link, str], str] = lambda link, name: ""
        self.sent: Counter[str] = Counter()
        self.infos = 0
        self._chance = Random(f"network {seed}")
        self._links: list[Link] = []
        self._made = 0
        self._stalls: dict[str, float] = {}
        self._deaf: dict[str, float] = {}
        self._mute: set[str] = set()

    # --- what goes wrong

    def stall(self, name: str, for_s: float) -> None:
        """Let nothing travel from and to a process for so long."""
        self._stalls[name] = self.world.now_s + for_s

    def stalled_s(self, process: Process) -> float:
        """Return for how long nothing travels from and to a process."""
        return self._stalls.get(process.name, 0.0) - self.world.now_s

    def lose_hints(self, name: str, for_s: float) -> None:
        """Let no hint arrive at a process for so long; without a name, at none."""
        self._deaf[name] = self.world.now_s + for_s

    def mute(self, name: str) -> None:
        """Let the server publish nothing for a process, as for a user who has no right to the channels."""
        self._mute.add(name)

    def cut_all(self, name: str | None = None) -> None:
        """Cut all connections, or those of one process."""
        for link in list(self._links):
            if name is None or link.process.name == name:
                link.break_off()

    def heal(self) -> None:
        """End all that goes wrong."""
        self.slowness, self.lagging = 1.0, False
        self._stalls.clear()
        self._deaf.clear()
        self.loses = lambda link, name: ""

    # --- what connections use

    def travel_s(self) -> float:
        """Draw how long something travels."""
        return self.slowness * (LEAST_S + (MOST_S - LEAST_S) * self._chance.random())

    def connect(self, process: Process, connect_s: float) -> Link:
        """Return a new connection of the running task's process.

        Raises:
            WireBrokenError: The server does not run, or nothing gets through.
        """
        world = self.world
        stalled_s = self.stalled_s(process)
        world.sleep(min(connect_s, max(0.0, stalled_s) + 2 * self.travel_s()))
        if stalled_s >= connect_s:
            raise WireTimeoutError("no connection in time")
        if self.down:
            raise WireBrokenError("connection refused")
        self._made += 1
        link = Link(self, process, self._made)
        self._links.append(link)
        return link

    def forget(self, link: Link) -> None:
        """Know nothing of a connection any more."""
        if link in self._links:
            self._links.remove(link)

    def carry_out(self, link: Link, request: bytes, doing: Any) -> None:
        """Let the server carry out a request, and send the replies."""
        reader = hiredis.Reader()
        reader.feed(request)
        while (command := reader.gets()) is not False:
            name = self.server.name_of(command)
            self.sent[link.process.name] += 1
            self.infos += name == "INFO"
            fate = self.loses(link, name)
            if fate == "request":
                self.world.trace(link.number, name, "lost")
                link.break_off()
                return
            if name == "SUBSCRIBE":
                self._subscribe(link, command[1:])
                continue
            if name == "WAIT":
                link.confirm(int(command[1]), 0.0 if not self.lagging else int(command[2]) / 1000)
                continue
            if link.channels:  # only PING is allowed there
                link.answer([b"pong", b""])
                continue
            reply, hints = self.server.execute(command, name, doing)
            self.world.trace(link.number, link.process, name)
            self._publish([] if link.process.name in self._mute else hints)
            if fate == "reply":
                self.world.trace(link.number, name, "reply lost")
                link.break_off()
                return
            link.answer(reply)

    def _subscribe(self, link: Link, channels: list[bytes]) -> None:
        for channel in channels:
            link.channels.add(channel)
            link.answer([b"subscribe", channel, len(link.channels)])

    def _publish(self, hints: list[tuple[bytes, bytes]]) -> None:
        now_s = self.world.now_s
        deaf = {name for name, until_s in self._deaf.items() if until_s > now_s}
        for channel, text in hints:
            for link in self._links:
                if channel in link.channels and "" not in deaf and link.process.name not in deaf:
                    link.answer([b"message", channel, text])


class SimulatedWire:
    """One end of a connection, as `rmq._io.wire.Wire` looks to the library."""

    def __init__(self, network: Network, process: Process, url: str, timeout_s: float, connect_s: float) -> None:
        self.received = 0
        self.unsent = False
        self.url = url
        self._network = network
        self._process = process
        self._timeout_s = timeout_s
        self._connect_s = connect_s
        self._link: Link | None = None

    def connect(self) -> None:
        self._link = self._network.connect(self._process, self._connect_s)

    def send(self, request: bytes) -> None:
        self._open_link().send(request)

    def post(self, request: bytes) -> None:
        self.send(request)

    def push(self) -> None: ...

    def send_command(self, *args: Argument) -> None:
        self.send(pack(*args))

    def read(self, *, wait: bool = True) -> Any:
        link = self._open_link()
        if not link.arrived:
            if not wait:
                return NOTHING
            waiter = self._network.world.waiter()
            link.watchers.append(waiter)
            if not self._network.world.wait(waiter, self._timeout_s) and not link.arrived:
                self.unwatch(waiter)
                raise WireTimeoutError("no reply in time")
        reply = link.arrived[0]
        if reply is _END:
            raise WireBrokenError("the connection was closed")
        link.arrived.popleft()
        self.received += 1
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def call(self, *args: Argument) -> Any:
        self.send_command(*args)
        return self.read()

    @property
    def has_data(self) -> bool:
        return bool(self._open_link().arrived)

    def can_read(self, timeout_s: float = 0.0) -> bool:
        link = self._open_link()
        if not link.arrived and timeout_s > 0:
            waiter = self._network.world.waiter()
            self.watch(waiter)
            self._network.world.wait(waiter, timeout_s)
            self.unwatch(waiter)
        return bool(link.arrived)

    def interrupt(self) -> None:
        if self._link is not None:
            self._link.end()

    def fileno(self) -> int:
        return -1 if self._link is None else self._link.number

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.closed = True
            self._network.forget(link)

    # --- for the backend

    @property
    def has_news(self) -> bool:
        """Whether a wait for it is over at once."""
        return self._link is None or bool(self._link.arrived)

    def watch(self, waiter: Waiter) -> None:
        """Wake somebody when something arrives."""
        if self._link is not None:
            self._link.watchers.append(waiter)

    def unwatch(self, waiter: Waiter) -> None:
        """Wake him no more."""
        if self._link is not None and waiter in self._link.watchers:
            self._link.watchers.remove(waiter)

    def _open_link(self) -> Link:
        if self._link is None:
            raise WireBrokenError("the connection is closed")
        return self._link
