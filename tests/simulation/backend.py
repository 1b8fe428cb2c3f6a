"""How the library waits in the simulation: a third `Runtime`, beside threads and the event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import ParamSpec, TypeVar, cast

from rmq._io.backend import Condition, Event, Job, Lock, Runtime
from rmq._io.wire import Wire
from tests.simulation.network import Network, SimulatedWire
from tests.simulation.world import Process, Task, Waiter, World

P = ParamSpec("P")
T = TypeVar("T")


class Simulated(Runtime):
    """Waits in a simulated process; see `rmq._io.backend.Runtime`.

    Args:
        world: The scheduler and the clock.
        process: Where the tasks run.
        network: What leads to Redis.
    """

    cancellations: tuple[type[BaseException], ...] = ()
    outlives_main = False
    calls_at_once = 1

    def __init__(self, world: World, process: Process, network: Network) -> None:
        self.world = world
        self.process = process
        self._network = network

    def sleep(self, seconds: float) -> None:
        self.world.sleep(seconds)

    def lock(self, *, long: bool = False) -> Lock:
        del long
        return _Lock(self.world)

    def condition(self) -> Condition:
        return _Condition(self.world)

    def event(self) -> Event:
        return _Event(self.world)

    def job(self, run: Callable[[], object], name: str) -> Job:
        return _Job(self.world, self.process, run, name)

    def caller(self) -> int:
        return id(self.world.current)

    def interrupted(self) -> int:
        return 0

    def wait_readable(self, wires: Iterable[Wire], timeout_s: float) -> None:
        self._wait_for(wires, timeout_s)

    def wait_progress(self, wires: Iterable[Wire], timeout_s: float) -> None:
        self._wait_for(wires, timeout_s)

    def wire_factory(
        self, url: str, timeout_s: float, connect_s: float | None = None, credentials: object = None
    ) -> Callable[[], Wire]:
        del credentials
        connect_s = timeout_s if connect_s is None else connect_s

        def make() -> Wire:
            return cast("Wire", SimulatedWire(self._network, self.process, url, timeout_s, connect_s))

        return make

    def _wait_for(self, wires: Iterable[Wire], timeout_s: float) -> None:
        watched = [cast("SimulatedWire", wire) for wire in wires]
        if any(wire.has_news for wire in watched):
            return
        waiter = self.world.waiter()
        for wire in watched:
            wire.watch(waiter)
        try:
            self.world.wait(waiter, timeout_s)
        finally:
            for wire in watched:
                wire.unwatch(waiter)


class _Lock:
    """Free for whoever comes first after its release, as with threads."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held = False
        self._asking: deque[Waiter] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world = self._world
        if world.over:
            return True
        if world.yields:
            world.give_way()
        if not self._held:
            self._held = True
            return True
        until_s = None if timeout < 0 else world.now_s + timeout
        while self._held:
            left_s = None if until_s is None else until_s - world.now_s
            if not blocking or (left_s is not None and left_s <= 0):
                return False
            waiter = world.waiter()
            self._asking.append(waiter)
            try:
                world.wait(waiter, left_s)
            finally:
                if waiter in self._asking:
                    self._asking.remove(waiter)
        self._held = True
        return True

    def release(self) -> None:
        self._held = False
        if self._asking:
            self._asking.popleft().wake()
        if self._world.yields and not self._world.over:
            self._world.give_way()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.release()


class _Condition:
    """As `threading.Condition`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = _Lock(world)
        self._waiting: list[Waiter] = []

    def wait(self, timeout: float | None = None) -> bool:
        waiter = self._world.waiter()
        self._waiting.append(waiter)
        self._lock.release()
        try:
            return self._world.wait(waiter, timeout)
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            self._lock.acquire()

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.wake()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._lock.release()


class _Event:
    """As `threading.Event`; set for all at the end of the simulation, so that every loop ends."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set = False
        self._waiting: list[Waiter] = []

    def is_set(self) -> bool:
        return self._set or self._world.over

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.wake()
        if not self._world.over:
            self._world.give_way()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            return True
        waiter = self._world.waiter()
        self._waiting.append(waiter)
        try:
            self._world.wait(waiter, timeout)
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        return self._set


class _Job:
    """As a daemon thread."""

    def __init__(self, world: World, process: Process, run: Callable[[], object], name: str) -> None:
        self._world = world
        self._process = process
        self._run = run
        self._name = name
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._world.spawn(self._process, self._run, self._name)

    def join(self, timeout: float | None = None) -> None:
        task, world = self._task, self._world
        if task is None or task.ended or task is world.current:
            return
        waiter = world.waiter()
        task.joining.append(waiter)
        try:
            world.wait(waiter, timeout)
        finally:
            if waiter in task.joining:
                task.joining.remove(waiter)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.ended
