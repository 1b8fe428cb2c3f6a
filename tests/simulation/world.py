"""One thread, a seeded scheduler and virtual time: what runs next is drawn, and time passes only while nobody can run.

A task is a greenlet. It runs until it waits; then the scheduler draws the next one of those that can run. So the same
seed gives the same order of everything.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from hashlib import sha1
from random import Random
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

EPOCH_MS = 1_790_000_000_000
"""Redis' time at the beginning."""

START_S = 1_000.0
"""The monotonic clock at the beginning."""

STEP_S = 1e-6
"""How long a task runs before it waits, so that a loop that never waits for anything gets on."""

MOST_STEPS = 20_000_000
"""After so many steps a seed counts as hung."""


class HungError(Exception):
    """The simulation does not come to its end."""


class Process:
    """A simulated process: its tasks run, or wait while it is paused, or never run again once it is dead.

    Args:
        name: Its name, which a restart keeps.
        number: How many processes there were before it.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.dead = False
        self.paused = False
        self.held: list[Task] = []
        self.tasks: list[Task] = []

    def __repr__(self) -> str:
        return f"{self.name}#{self.number}"


class Waiter:
    """One wait of one task; woken once, by an event or by its time."""

    __slots__ = ("done", "task", "told", "world")

    def __init__(self, world: World, task: Task) -> None:
        self.world = world
        self.task = task
        self.done = False
        self.told = False

    def wake(self, told: bool = True) -> None:
        """Let the task run again; nothing where it does already."""
        if not self.done:
            self.done, self.told = True, told
            if self.task.parked is self:
                self.world.make_ready(self.task)

    def ring(self) -> None:
        """Let the task run again, since its time is over."""
        self.wake(False)


class Task:
    """Something that runs in a process."""

    def __init__(self, world: World, process: Process, run: Callable[[], object], name: str) -> None:
        self.world = world
        self.process = process
        self.name = name
        self.ended = False
        self.doing: Any = None
        """What it is at, for who executes its requests."""
        self.joining: list[Waiter] = []
        self.parked: Waiter | None = None
        """What it waits for."""
        self._run = run
        self.greenlet = greenlet(self._body, world.hub)
        process.tasks.append(self)

    def _body(self) -> None:
        try:
            self._run()
        except GreenletExit:
            pass
        except BaseException as error:  # a thread would end with a traceback on standard error
            self.world.failed(f"crash: {self.process} {self.name} ended with {error!r}")
        finally:
            self.ended = True
            self.process.tasks.remove(self)
            for waiter in self.joining:
                waiter.wake()


class World:
    """The scheduler and the clock.

    Args:
        seed: What everything is drawn from.
        yields: How often a task that asks for the time is interrupted by others, 0 to 1.

    Attributes:
        now_s: The monotonic clock.
        over: Whether the simulation has ended: nothing waits any more.
        failures: What must never happen, and did.
        chance: What the scheduler draws from.
        yields: As above; where it is 0, `give_way` does nothing.
    """

    def __init__(self, seed: int, yields: float = 0.0) -> None:
        self.now_s = START_S
        self.over = False
        self.failures: list[str] = []
        self.chance = Random(f"schedule {seed}")
        self.entropy = Random(f"entropy {seed}")
        self.steps = 0
        self.processes: list[Process] = []
        self.yields = yields
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._number = 0
        self._current: Task | None = None
        self.hub = getcurrent()
        self._until_yield = self._draw_yield()
        self._trace = sha1(usedforsecurity=False)
        self.lines: list[str] | None = None
        """What is traced, line by line; `None` where only its digest is wanted."""

    @property
    def now_ms(self) -> int:
        """Redis' clock."""
        return EPOCH_MS + int((self.now_s - START_S) * 1000)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return self.now_s - START_S

    @property
    def current(self) -> Task | None:
        """The task that runs; `None` where the scheduler itself does."""
        return self._current

    @property
    def digest(self) -> str:
        """What the whole history comes to."""
        return self._trace.hexdigest()

    def trace(self, *what: object) -> None:
        """Add a line to the history."""
        line = f"{self.elapsed_s:.6f} {what}"
        self._trace.update(line.encode("utf-8", "backslashreplace"))
        if self.lines is not None:
            self.lines.append(line)

    def failed(self, what: str) -> None:
        """Note what must never happen."""
        if not self.over:
            self.trace("failed", what)
            self.failures.append(f"{what} at {self.elapsed_s:.3f}")

    # --- processes and tasks

    def process(self, name: str) -> Process:
        """Begin a process."""
        process = Process(name, len(self.processes))
        self.processes.append(process)
        return process

    def spawn(self, process: Process, run: Callable[[], object], name: str) -> Task:
        """Begin a task."""
        task = Task(self, process, run, name)
        self.make_ready(task)
        return task

    def make_ready(self, task: Task) -> None:
        """Let a task run when it is drawn; one of a paused process once that goes on."""
        process = task.process
        if process.dead:
            return
        (process.held if process.paused else self._ready).append(task)

    def pause(self, process: Process) -> None:
        """Stop a process as SIGSTOP does."""
        process.paused = True
        process.held += [task for task in self._ready if task.process is process]
        self._ready = [task for task in self._ready if task.process is not process]

    def resume(self, process: Process) -> None:
        """Let a paused process go on."""
        process.paused = False
        self._ready += process.held
        process.held = []

    def kill(self, process: Process) -> None:
        """End a process as SIGKILL does: no code of it runs any more."""
        process.dead = True
        self._ready = [task for task in self._ready if task.process is not process]

    # --- time and waiting

    def at(self, delay_s: float, action: Callable[[], object]) -> None:
        """Have something done after so long."""
        self._number += 1
        heapq.heappush(self._timers, (self.now_s + max(0.0, delay_s), self._number, action))

    def waiter(self) -> Waiter:
        """Return what wakes the running task."""
        if self._current is None:
            raise RuntimeError("only a task can wait")
        return Waiter(self, self._current)

    def wait(self, waiter: Waiter, timeout_s: float | None = None) -> bool:
        """Wait until woken; False where nobody did in time."""
        if self.over:
            raise GreenletExit
        if waiter.done:
            return waiter.told
        if timeout_s is not None:
            self.at(timeout_s, waiter.ring)
        waiter.task.parked = waiter
        self.hub.switch()
        if self.over:
            raise GreenletExit
        return waiter.told

    def sleep(self, seconds: float) -> None:
        """Let the running task wait for so long."""
        self.wait(self.waiter(), max(seconds, STEP_S))

    def give_way(self) -> None:
        """Let others run first, now and then: a thread can be interrupted anywhere."""
        if not self.yields or self._current is None:
            return
        self._until_yield -= 1
        if self._until_yield > 0:
            return
        self._until_yield = self._draw_yield()
        if self._ready or (self._timers and self._timers[0][0] <= self.now_s):  # else it would go on at once
            self.wait(self.waiter(), 0.0)

    def _draw_yield(self) -> int:
        """Draw how often a task asks for the time, or takes a lock, until one is interrupted."""
        if not self.yields:
            return 0
        return 1 + int(math.log(1 - self.chance.random()) / math.log(1 - self.yields))

    def run(self, until_s: float | None = None, done: Callable[[], bool] = lambda: False) -> None:
        """Let tasks run and time pass.

        Args:
            until_s: Stop after so many seconds since the beginning.
            done: Asked after each step; stop where it holds.

        Raises:
            HungError: Nothing happens any more, or too much.
        """
        end_s = None if until_s is None else START_S + until_s
        while not done():
            if self._ready:
                self._step()
                continue
            if end_s is not None and (not self._timers or self._timers[0][0] > end_s):
                self.now_s = max(self.now_s, end_s)
                return
            if not self._timers:
                raise HungError("every task waits for another")
            at_s, _, action = heapq.heappop(self._timers)
            self.now_s = max(self.now_s, at_s)
            action()

    def _step(self) -> None:
        ready = self._ready
        last = len(ready) - 1
        if last:
            drawn = int(self.chance.random() * (last + 1))
            ready[drawn], ready[last] = ready[last], ready[drawn]
        task = ready.pop()
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise HungError(f"{self.steps} steps, and no end")
        self.now_s += STEP_S
        self._current, task.parked = task, None
        task.greenlet.switch()
        self._current = None

    def end(self) -> None:
        """End all tasks; what they do then counts no more."""
        self.over = True
        for process in self.processes:
            for task in list(process.tasks):
                if task.greenlet:
                    task.greenlet.throw(GreenletExit)
        self._ready, self._timers = [], []
