"""Schedules in a simulation: who puts and changes them, and what their runners send."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from rmq import Observer, RmqClient, Schedule, SchedulePut, Topic
from rmq.errors import RmqError
from tests.simulation.history import ScheduleMark, Sent
from tests.simulation.plan import ScheduleChange, SchedulePlan
from tests.simulation.scheduled_plan import TICKS
from tests.simulation.world import Process, World

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

ENSURE_S, PARTS = 5.0, 200
"""So often what is wanted is put again, as each deployment does: a failover may have forgotten it. And at most in so
many parts of a plan."""

T = TypeVar("T")


def due_of(content: str) -> int:
    """Return the due time in the content of a message of a schedule, epoch ms."""
    return round(datetime.fromisoformat(content.partition("/")[2]).timestamp() * 1_000)


class Ticking(Observer):
    """Notes what a worker sends for schedules, and when Redis carries it out."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def before_send(self, topic: Topic, messages: int) -> None:
        del messages
        task = self._simulation.world.current
        if task is not None and topic.name == TICKS:
            task.doing = _Tick(self._simulation)
            self._simulation.faults.schedule_sends(task.process.name)

    def after_send(self, topic: Topic, messages: int) -> None:
        self._end("accepted")

    def failed_send(self, topic: Topic, messages: int, error: BaseException) -> None:
        self._end("unknown")

    def _end(self, state: str) -> None:
        task = self._simulation.world.current
        if task is not None and isinstance(task.doing, _Tick):
            if task.doing.sent is not None:
                task.doing.sent.state = state
            elif state == "accepted":
                self._simulation.world.failed("unexecuted: the send of a schedule was accepted")
            task.doing = None


class _Tick:
    """A send of a schedule, for whoever carries out its requests."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.sent: Sent | None = None

    def sharing(self, process: Process) -> _Tick:
        """Return what a request is part of: a worker's timetable sends by itself."""
        del process
        return self

    def executed(self, command: list[bytes], name: str, reply: Any, world: World) -> None:
        """Note that a request of it was carried out."""
        if name != "send" or isinstance(reply[-1], bytes):
            return
        [content] = [each for each in command if each[:1] == b"s" and b"/2" in each]
        if self.sent is None:
            number = len(self._simulation.history.sends)
            self.sent = Sent(number, TICKS, content.decode(), 0, 0, 0, world.now_s)
            self._simulation.history.note_sent(self.sent)
        self.sent.executed_ms.append(world.now_ms)
        self.sent.executed_s.append(world.now_s)


class Planner:
    """A process that puts the schedules of a plan, changes them at their times, and removes them at the end."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        self._simulation, self._world = simulation, simulation.world
        self._client: RmqClient = simulation.client(process)
        self._plans = {each.name: each for each in simulation.plan.schedules}
        self._versions = dict.fromkeys(self._plans, 1)
        self._removed = set[str]()

    def run(self) -> None:
        """Do it all."""
        world, changes = self._world, deque(self._simulation.plan.schedule_changes)
        while world.elapsed_s < self._simulation.plan.length_s:
            self._ensure()
            while changes and changes[0].at_s <= world.elapsed_s:
                self._change(changes.popleft())
            world.sleep(max(ENSURE_S, self._simulation.plan.length_s / PARTS))
        for name in self._plans:
            self._remove(name)
        self._client.close()

    def _ensure(self) -> None:
        for name in self._plans:
            if name in self._removed:
                self._note(name, "remove", lambda name=name: self._client.schedules.remove(name), {True})
            else:
                self._put(self._schedule(name))

    def _put(self, schedule: Schedule, from_ms: int | None = None, what: str = "put") -> None:
        stored = {SchedulePut.NEW, SchedulePut.CHANGED}
        self._note(schedule.name, what, lambda: self._client.schedules.put(schedule), stored, from_ms)

    def _change(self, change: ScheduleChange) -> None:
        name = change.name
        if name in self._removed:
            self._removed.remove(name)
            self._put(self._schedule(name))
            return
        from_ms = self._calm(name)
        if change.what == "older":
            self._put(self._schedule(name, self._versions[name] - 1), from_ms, "older")
        elif change.what == "change":
            self._versions[name] += 1
            self._put(self._schedule(name), from_ms)
        elif change.what == "remove":
            self._remove(name)
        else:
            self._note(name, "run", lambda: self._client.schedules.run_now(name), {True})

    def _remove(self, name: str) -> None:
        if name not in self._removed:
            from_ms = self._calm(name)
            self._removed.add(name)
            self._note(name, "remove", lambda: self._client.schedules.remove(name), {True}, from_ms)

    def _calm(self, name: str) -> int:
        """Wait until a schedule is not late: what is due from its times before a change is not sent after it."""
        pause_s = 0.05
        while True:
            from_ms = self._world.now_ms
            info, _ = self._until_done(lambda: self._client.schedules.get(name))
            if info is not None and info.late_ms == 0:
                return from_ms
            if info is None:
                self._put(self._schedule(name))
            self._world.sleep(pause_s)
            pause_s = min(2 * pause_s, ENSURE_S)

    def _schedule(self, name: str, version: int | None = None) -> Schedule:
        """Return a schedule as it is wanted, or an older one, which has half the interval."""
        plan: SchedulePlan = self._plans[name]
        number = self._versions[name] if version is None else version
        every = timedelta(milliseconds=self._every_ms(plan, number))
        return Schedule(
            name, TICKS, name + "/{scheduled}", every=every, catch_up=plan.catch_up, version=number, body="{scheduled}"
        )

    @staticmethod
    def _every_ms(plan: SchedulePlan, version: int) -> int:
        return plan.every_ms * (1 + version % 2)

    def _note(
        self, name: str, what: str, call: Callable[[], object], changed: set[Any], from_ms: int | None = None
    ) -> None:
        """Do something until it succeeds; note it if it has changed something, or may have."""
        from_ms = self._world.now_ms if from_ms is None else from_ms
        result, tries = self._until_done(call)
        if result in changed or tries > 1:
            plan, version = self._plans[name], self._versions[name]
            every_ms = self._every_ms(plan, version) if what == "put" else 0
            mark = ScheduleMark(name, what, from_ms, self._world.now_ms, every_ms, plan.catch_up, result in changed)
            self._simulation.history.marks.append(mark)
            self._world.trace("mark", mark)

    def _until_done(self, call: Callable[[], T]) -> tuple[T, int]:
        tries = 0
        while True:
            tries += 1
            try:
                return call(), tries
            except RmqError:
                self._world.sleep(0.5)
