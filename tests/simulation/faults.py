"""What goes wrong in a simulation, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.history import FOREVER_S, Trouble
from tests.simulation.network import Link
from tests.simulation.plan import AT_SEND, Fault

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

AT_WORK = ("pause", "kill", "stall", "zk_stall", "zk_expire")
"""What may wait until a handler runs."""

MOVING = ("pause", "kill", "stop", "zk_stall", "zk_expire", "zk_down")
"""After these, and at their ends, slots may pass to others."""

SOON_S, RECENT = 0.01, 50
"""What waits for a handler strikes so soon after its beginning; and of so many handlings one may still run."""

SOME_TIME_S = 0.3
"""A handler that has run so long is one of the few that take about as long as a lease."""

SHORT_S = 0.5
"""What a cut does is over then."""


class Faults:
    """Carries out the faults of a plan, and notes the troubles."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._over = False
        self._losing: list[tuple[Fault, list[int]]] = []
        self._awaiting: list[Fault] = []
        """What waits until a handler runs."""
        self._chance = Random(f"faults {simulation.plan.seed}")

    def begin(self) -> None:
        """Have each fault come at its time."""
        simulation = self._simulation
        simulation.network.loses = self._loses
        for fault in simulation.plan.faults:
            simulation.world.at(fault.at_s, lambda fault=fault: self._strike(fault))
            if fault.kind == "restart" and fault.what:
                simulation.world.at(fault.at_s - fault.what, self._lag)

    def end(self) -> None:
        """Let everything run again."""
        self._over = True
        simulation = self._simulation
        self._losing.clear()
        simulation.network.heal()
        simulation.network.down = False
        simulation.ensemble.heal()
        for process in simulation.world.processes:  # of a worker that was paused in its stop another one runs already
            if process.paused and not process.dead:
                simulation.world.resume(process)
        for name, worker in list(simulation.workers.items()):
            if worker.process.dead or worker.stopping:
                self._start_again(name)
        now_s = simulation.world.now_s
        simulation.history.troubles = [
            Trouble(each.kind, each.who, each.from_s, now_s if now_s < each.to_s < FOREVER_S else each.to_s)
            for each in simulation.history.troubles
        ]

    def _strike(self, fault: Fault) -> None:
        if self._over:
            return
        at_send = fault.kind == "stall" and fault.what == AT_SEND
        if at_send or (
            fault.kind in AT_WORK
            and fault.what
            and not self._handles(fault.target, SOME_TIME_S if fault.what > 1 else 0.0)
        ):
            self._awaiting.append(fault)
            return
        self._simulation.world.trace("fault", fault)
        if fault.kind in MOVING:
            now_s = self._simulation.world.now_s
            self._simulation.history.moves += [(now_s, fault.target), (now_s + fault.for_s, fault.target)]
        getattr(self, f"_{fault.kind}")(fault)

    def handler_begins(self, name: str) -> None:
        """Let what waits for a handler of a process strike soon."""
        for fault in [each for each in self._awaiting if each.target == name and each.what != AT_SEND]:
            self._awaiting.remove(fault)
            after_s = SOME_TIME_S if fault.what > 1 else SOON_S * self._chance.random()
            self._simulation.world.at(after_s, lambda fault=fault: self._strike(fault))

    def schedule_sends(self, name: str) -> None:
        """Let what waits for a process to send a schedule's message strike now: such a send is over soon.

        Its connections break, too: else the message would arrive after the stall.
        """
        for fault in [each for each in self._awaiting if each.target == name and each.what == AT_SEND]:
            self._awaiting.remove(fault)
            self._strike(replace(fault, what=0.0))
            self._simulation.world.at(SOON_S, lambda: self._simulation.network.cut_all(name))

    def _handles(self, name: str, for_s: float) -> bool:
        """Return whether a process has been in a handler for so long; of one that consumes nothing, True."""
        worker = self._simulation.workers.get(name)
        recent = self._simulation.history.runs[-RECENT:]
        since_s = self._simulation.world.now_s - for_s
        return worker is None or any(
            run.life == worker.process.number and run.end_s == FOREVER_S and run.start_s <= since_s for run in recent
        )

    def _note(self, fault: Fault, from_s: float, for_s: float, kind: str = "") -> None:
        self._simulation.history.troubles.append(Trouble(kind or fault.kind, fault.target, from_s, from_s + for_s))

    def _later(self, fault: Fault, action: Callable[[], object]) -> None:
        def act() -> None:
            if not self._over:
                action()

        self._simulation.world.at(fault.for_s, act)

    def _cut(self, fault: Fault) -> None:
        network = self._simulation.network
        self._note(fault, network.world.now_s, SHORT_S)
        network.cut_all(fault.target or None)

    def _lose_reply(self, fault: Fault) -> None:
        self._losing.append((fault, [int(fault.what)]))

    _lose_request = _lose_reply

    def _loses(self, link: Link, name: str) -> str:
        """Return what becomes of a call: the `request` or the `reply` is lost, or nothing."""
        if name.isupper():
            return ""
        for fault, left in self._losing:
            if fault.target in ("", link.process.name) and fault.script in name:
                left[0] -= 1
                if left[0] == 0:
                    self._losing.remove((fault, left))
                    who = Fault(fault.at_s, fault.kind, link.process.name)
                    self._note(who, self._simulation.world.now_s - 0.01, SHORT_S)
                    return fault.kind.removeprefix("lose_")
                break
        return ""

    def _lose_hints(self, fault: Fault) -> None:
        self._simulation.network.lose_hints(fault.target, fault.for_s)
        self._note(fault, self._simulation.world.now_s, fault.for_s)

    def _stall(self, fault: Fault) -> None:
        self._simulation.network.stall(fault.target, fault.for_s)
        self._note(fault, self._simulation.world.now_s, fault.for_s + SHORT_S)

    def _slow(self, fault: Fault) -> None:
        network = self._simulation.network
        network.slowness = fault.what
        self._note(fault, network.world.now_s, fault.for_s + SHORT_S)
        self._later(fault, lambda: setattr(network, "slowness", 1.0))

    def _pause(self, fault: Fault) -> None:
        simulation = self._simulation
        process = simulation.workers[fault.target].process
        if process.dead or process.paused:
            return
        simulation.world.pause(process)
        self._note(fault, simulation.world.now_s, fault.for_s)
        self._later(fault, lambda: simulation.world.resume(process))

    def _kill(self, fault: Fault) -> None:
        simulation = self._simulation
        worker = simulation.workers[fault.target]
        if worker.process.dead or worker.stopping:
            return
        simulation.world.kill(worker.process)
        now_s = simulation.world.now_s
        for run in simulation.history.runs:
            if run.process == fault.target and run.end_s == FOREVER_S:
                run.end_s = now_s
        self._note(fault, now_s, fault.for_s + SHORT_S)
        self._later(fault, lambda: self._start_again(fault.target))

    def _stop(self, fault: Fault) -> None:
        worker = self._simulation.workers[fault.target]
        if worker.process.dead or worker.process.paused or worker.stopping:
            return
        worker.stop()
        self._later(fault, lambda: self._start_again(fault.target))

    def _start_again(self, name: str) -> None:
        worker = self._simulation.workers[name]
        if worker.process.dead or worker.stopping:
            self._simulation.start_worker(worker.plan)

    def _lag(self) -> None:
        """Let a replica lag from now on: what is written, it lacks when it takes over."""
        if not self._over:
            self._simulation.server.remember()
            self._simulation.network.lagging = True

    def _restart(self, fault: Fault) -> None:
        simulation = self._simulation
        network, now_s = simulation.network, simulation.world.now_s
        network.cut_all()
        network.down, network.lagging = True, False
        simulation.server.restart(forgets=fault.what > 0)
        self._note(fault, now_s, fault.for_s + SHORT_S)
        if fault.what:
            simulation.history.troubles.append(Trouble("forget", "", now_s - fault.what, now_s))

        self._later(fault, lambda: setattr(network, "down", False))

    def _zk_stall(self, fault: Fault) -> None:
        self._simulation.ensemble.stall(fault.target, fault.for_s)
        self._note(fault, self._simulation.world.now_s, fault.for_s)

    def _zk_expire(self, fault: Fault) -> None:
        self._simulation.ensemble.expire(fault.target)
        self._note(fault, self._simulation.world.now_s, SHORT_S)

    def _zk_down(self, fault: Fault) -> None:
        ensemble = self._simulation.ensemble
        ensemble.stop()
        self._note(fault, self._simulation.world.now_s, fault.for_s)
        self._later(fault, ensemble.start)
