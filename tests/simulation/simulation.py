"""Runs a plan: producers and workers with the real library, faults at their times, and the accounts at the end."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, cast

from rmq import (
    DelayedQueue,
    FixedTimeMessage,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    SendResult,
    StreamMessage,
    Topic,
    TopicType,
)
from rmq.delayed import ID_BYTES
from rmq.errors import RmqError, SendError
from tests.simulation.backend import Simulated
from tests.simulation.checkers import Violation, check, forgotten_sends
from tests.simulation.faults import Faults
from tests.simulation.history import SLOW_PATIENCE_S, History, Sent, readers
from tests.simulation.long_plan import LONG_SESSION_S
from tests.simulation.network import Network
from tests.simulation.plan import MOST_BITS, NUMBERED, Plan, SendPlan, WorkerPlan
from tests.simulation.schedules import Planner
from tests.simulation.server import Server
from tests.simulation.streams import begin_groups, dead_entries, entries_left, sorted_set_topics, streams
from tests.simulation.virtual import inhabit
from tests.simulation.workers import LONGEST, Worker
from tests.simulation.world import START_S, HungError, Process, World
from tests.simulation.zookeeper import (
    SESSION_S,
    Ensemble,
    keeps_owners_in_redis,
    new_coordinator,
    new_redis_coordinator,
)
from tests.support.core import Job, Message
from tests.support.slots import check_topic
from tests.support.streams import check_stream

DRAIN_S = 240.0
"""How long after the last fault everything has to be handled."""

LOOK_AT_END_S, LONG_LOOK_AT_END_S, LOOK_AT_DEAD_S = 0.5, 30.0, 600.0
"""So often the end of a plan, and of a long one, is looked for; and so often dead messages are noted: the oldest go."""

TIMEOUT_S, DEADLINE_S = 2.0, 8.0

RECURRING = "rmq.recurring"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a plan.

    Attributes:
        violations: Broken promises.
        digest: What the whole history comes to: equal for equal plans.
        simulated_s: How much time passed.
        sends: How many messages were sent.
        runs: How many handlings there were.
        calls: How many commands the real Redis has carried out.
        forgotten: How many accepted sends a failover has forgotten.
        kind: The kind of plan.
    """

    violations: tuple[Violation, ...]
    digest: str
    simulated_s: float
    sends: int
    runs: int
    calls: int
    forgotten: int = 0
    kind: str = ""

    @property
    def kinds(self) -> set[str]:
        """Which promises were broken."""
        return {violation.kind for violation in self.violations}


class Sending:
    """A call that sends, for whoever carries out its requests: notes when."""

    def __init__(self, sents: Sequence[Sent]) -> None:
        self._sents = {sent.content.encode(): sent for sent in sents}

    def sharing(self, process: Process) -> Sending:
        """Return this call and those of the process's other threads: one request may carry out all of them."""
        shared = Sending(())
        for task in process.tasks:
            if isinstance(task.doing, Sending):
                shared._sents |= task.doing._sents
        return shared

    def executed(self, command: list[bytes], name: str, reply: Any, world: World) -> None:
        """Note that a request of it was carried out: for the messages that it has not refused."""
        if "send" not in name:
            return
        for arguments, outcomes in parts_of(command, reply) if name == "send" else [(command[3:], reply)]:
            found = [self._sents.get(each) or self._sents.get(each[ID_BYTES:]) for each in arguments]
            refused = set[int]() if name == "stream_send" else _refused_places(outcomes)  # it answers ids
            sents = [each for each in found if each is not None]
            for place, sent in enumerate(sents):
                if place not in refused:
                    sent.executed_ms.append(world.now_ms)
                    sent.executed_s.append(world.now_s)
                    sent.new.append(_new_of(name, outcomes, len(sents)))


def parts_of(command: Sequence[bytes], reply: Sequence[Any]) -> Iterator[tuple[Sequence[bytes], Any]]:
    """Yield the arguments of a `send` and the reply for each slot that has not refused its part."""
    arguments, at = command[3 + int(command[2]) :], 7
    for each in reply[1:]:
        last = at + int(arguments[at])
        if not isinstance(each, bytes):
            yield arguments[at + 1 : last + 1], each
        at = last + 1


def _new_of(name: str, reply: Any, number: int) -> int | None:
    """Return 1 or 0 for a message that was new or merged; `None` for one of several, of which only the sum is told."""
    if number > 1:
        return None
    return 1 if name == "stream_send" else int(reply[0])


def _refused_places(reply: Any) -> set[int]:
    """Return the places of the messages that a send has refused by themselves: their outcomes are 2, 3 or 4."""
    told = isinstance(reply, list) and len(cast("list[Any]", reply)) > 1 and isinstance(reply[1], bytes)
    return {place for place, code in enumerate(cast("bytes", reply[1])) if code in b"234"} if told else set()


def _content_of(message: Message | tuple[str, int]) -> str:
    """Return the content of a message that an error names; of what was offered to a delayed queue, the value."""
    return message[0] if isinstance(message, tuple) else str(message.content)


class Simulation:
    """One run of a plan."""

    def __init__(self, plan: Plan, server: Server, *, lines: bool = False) -> None:
        self.plan = plan
        self.server = server
        self.world = World(plan.seed, plan.yields)
        self.network = Network(self.world, server, plan.seed)
        self.ensemble = Ensemble(self.world, plan.seed, LONG_SESSION_S if plan.long else SESSION_S)
        self.topics = [each.topic() for each in plan.topics]
        self._stored = [*self.topics, Topic(RECURRING, TopicType.FIXED_TIME, lease="30s")]
        self.history = History({name: each for each in plan.topics for name in (each.name, *readers(each))})
        self.history.replicated, self.history.economy = plan.replicated, plan.economy
        if plan.slow:
            self.history.patience_s = SLOW_PATIENCE_S
        self.workers: dict[str, Worker] = {}
        self.faults = Faults(self)
        self._bits: dict[tuple[str, str], int] = {}
        self._sending = 0
        if lines:
            self.world.lines = []

    def run(self) -> Outcome:
        """Run it to its end."""
        collecting = gc.isenabled()
        gc.disable()  # what is dropped when must not depend on what ran before
        disabled = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        calls = self.server.calls
        try:
            with inhabit(self.world, self.plan.seed):
                self.server.begin(self.world, self._stored, warm=self.plan.warm)
                begin_groups(self.server, self.topics)
                try:
                    self._play()
                except HungError as error:
                    self.world.failed(f"hung: {error}")
                self.world.end()
        finally:
            logging.disable(disabled)
            if collecting:
                gc.enable()
        self._note_holds()
        violations = [Violation(*failure.split(": ", 1)) for failure in self.world.failures]
        violations += check(self.history)
        return Outcome(
            tuple(violations),
            self.world.digest,
            self.world.elapsed_s,
            len(self.history.sends),
            len(self.history.runs),
            self.server.calls - calls,
            forgotten_sends(self.history),
            self.plan.kind,
        )

    def backend(self, process: Process) -> Simulated:
        """Return how a process waits."""
        return Simulated(self.world, process, self.network)

    def client(self, process: Process, *, owns: bool = False) -> RmqClient:
        """Return a client of a process: the real one, whose waits are simulated."""
        backend = self.backend(process)
        kind = type("SimulatedClient", (RmqClient,), {"_runtime": backend})
        make = new_redis_coordinator if keeps_owners_in_redis(self.plan.seed) else new_coordinator
        coordinator = make(self.ensemble, backend, process.name) if owns else None
        return kind(
            "redis://simulated",
            zookeeper=coordinator,
            timeout_s=TIMEOUT_S,
            deadline_s=DEADLINE_S,
            durability="replicated" if self.plan.replicated else "memory",
        )

    # --- the course of a plan

    def _play(self) -> None:
        world, plan = self.world, self.plan
        if plan.owned:
            self.ensemble.begin()
        for each in plan.workers:
            self.start_worker(each)
        for name in sorted({send.producer for send in plan.sends}):
            self._sending += 1
            process = world.process(name)
            sends = [send for send in plan.sends if send.producer == name]
            world.spawn(process, lambda process=process, sends=sends: self._produce(process, sends), name)
        if plan.schedules:
            self._sending += 1
            process = world.process("planner")
            world.spawn(process, lambda: self._run_planner(process), "planner")
        self._await_end()
        for worker in self.workers.values():
            worker.stop()
        world.run(world.elapsed_s + 120.0, lambda: not any(each.tasks for each in world.processes if not each.dead))
        for process in world.processes:
            if process.tasks and not process.dead:
                world.failed(f"hung: {process} does not end: {[task.name for task in process.tasks]}")
        self._check_slots()

    def _await_end(self) -> None:
        """Let the plan take its course until all is handled."""
        world, plan = self.world, self.plan
        self.faults.begin()
        forgets_dead = any(each.dead_s < plan.length_s for each in plan.topics)
        for part in range(1, int(plan.length_s / LOOK_AT_DEAD_S) + 1):
            world.run(part * LOOK_AT_DEAD_S)
            if forgets_dead:
                self._note_dead()
        world.run(plan.length_s)
        self.faults.end()
        look_s = LONG_LOOK_AT_END_S if plan.long else LOOK_AT_END_S
        drain_s = DRAIN_S + max(self.history.longest_wait_s(each.name) for each in plan.topics)
        if plan.long:
            drain_s += max(
                each.longest_retries_s + (each.max_retries + 1) * LONGEST * each.lease_s for each in plan.topics
            )
        end_s = world.elapsed_s + drain_s
        while self._sending or not self._drained():
            if world.elapsed_s >= end_s:
                world.failed(f"starved: not drained {drain_s:g} s after the last fault: {self._left()}")
                break
            world.run(world.elapsed_s + look_s)
            if forgets_dead:
                self._note_dead()
        self._note_dead()

    def start_worker(self, plan: WorkerPlan) -> None:
        """Start a consuming process."""
        worker = Worker(self, plan)
        self.workers[plan.name] = worker
        worker.start()

    def _produce(self, process: Process, sends: list[SendPlan]) -> None:
        """Send one call after the other, or those that are due at the same time at once, a thread each.

        Of calls with a content in common the later one waits: else which of them is the last one would not be known.
        """
        world, client, backend = self.world, self.client(process), self.backend(process)
        last: dict[int, Job] = {}

        def run(send: SendPlan, before: list[Job]) -> None:
            for each in before:
                each.join()
            self._send(client, send)

        for number, send in enumerate(sends):
            if (wait_s := send.at_s + START_S - world.now_s) > 0:
                world.sleep(wait_s)
            if self.plan.bursts:
                contents = {content for content, _ in send.messages}
                before = [last[each] for each in contents if each in last]
                job = backend.job(partial(run, send, before), f"thread {number}")
                last |= dict.fromkeys(contents, job)
                job.start()
            else:
                self._send(client, send)
        for each in last.values():
            each.join()
        client.close()
        self._sending -= 1

    def _run_planner(self, process: Process) -> None:
        Planner(self, process).run()
        self._sending -= 1

    def _send(self, client: RmqClient, plan: SendPlan) -> None:
        world, topic = self.world, self.topics[plan.topic]
        sents: list[Sent] = []
        taken: set[int] = set()
        for number, what in plan.messages:
            if number not in taken:
                taken.add(number)
                sents.append(self._sent(topic, number, what))
        states: dict[str, str] = {}
        task = world.current
        assert task is not None
        task.doing = Sending(sents)
        try:
            result = self._hand_over(client, topic, sents)
        except SendError as error:
            states = {_content_of(each): "unknown" for each in error.unknown}
            states |= {_content_of(each): "refused" for each in error.not_stored}
        except RmqError:
            states = {each.content: "unknown" for each in sents}
        else:
            self._compare(result, sents)
        finally:
            task.doing = None
        for sent in sents:
            sent.state = states.get(sent.content, "accepted")
            if sent.state == "accepted" and not sent.executed_ms:
                world.failed(f"unexecuted: send {sent.number} of {sent.topic}/{sent.content} was accepted")
            if sent.state == "refused" and sent.executed_ms:
                world.failed(f"refused: send {sent.number} of {sent.topic}/{sent.content} was carried out")

    def _compare(self, result: SendResult, sents: list[Sent]) -> None:
        """Find a call that was given another call's reply."""
        if len(sents) == 1 and (new := sents[0].new) and result.new not in new:
            sent = sents[0]
            self.world.failed(
                f"told: send {sent.number} of {sent.topic}/{sent.content} counts {result.new} as new, the server {new}"
            )

    def _hand_over(self, client: RmqClient, topic: Topic, sents: list[Sent]) -> SendResult:
        if self.history.topics[topic.name].kind == "delayed":
            queue = DelayedQueue(client, topic.name, slots=topic.slots, lease=topic.lease)
            return queue.offer_many((sent.content, timedelta(milliseconds=sent.what)) for sent in sents)
        messages = [self._message(sent) for sent in sents]
        producer = client.producer(topic)
        return producer.send_many(messages) if len(messages) > 1 else producer.send(messages[0])

    def _sent(self, topic: Topic, number: int, what: int) -> Sent:
        plan = self.history.topics[topic.name]
        content, basis, bit = f"c{number}", "", 0
        if plan.kind in NUMBERED:
            content, basis = f"{NUMBERED[plan.kind]}{len(self.history.sends)}", content
        if plan.kind == "sum":
            drawn = self._bits.get((topic.name, content), 0)
            self._bits[topic.name, content] = drawn + 1
            content, bit = f"c{number}.{drawn // MOST_BITS}", drawn % MOST_BITS
        fixed_ms = self.world.now_ms + what if plan.kind == "fixed" else 0
        sent = Sent(len(self.history.sends), topic.name, content, what, bit, fixed_ms, self.world.now_s, basis=basis)
        self.history.note_sent(sent)
        return sent

    def _message(self, sent: Sent) -> Message:
        kind, body = self.history.topics[sent.topic].kind, str(sent.number)
        match kind:
            case "fixed":
                return FixedTimeMessage(sent.content, fixed_time_ms=sent.fixed_ms, body=body)
            case "priority":
                return PriorityMessage(sent.content, sent.what, body=body)
            case "sum":
                return RangeMergeMessage(sent.content, body=1 << sent.bit)
            case "stream":
                return StreamMessage(sent.content, slot_basis=sent.basis)
            case _:
                return RangeMergeMessage(sent.content, time_range_ms=sent.what, body=body)

    # --- the end

    def _sections(self, *sections: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for topic in sorted_set_topics(self.topics):
            for slot in range(topic.slots):
                store = f"{topic.name}_{slot}"
                for section in sections:
                    key = store if section == "store" else f"{section}{{{store}}}"
                    if size := self.server.call("ZCARD", key):
                        found[key] = size
        return found

    def _left(self) -> dict[str, int]:
        return self._sections("store", "prepare", "retry") | entries_left(self.server, self.topics)

    def _drained(self) -> bool:
        return self.world.now_s >= self.network.quiet_from_s and not self._left()

    def _note_dead(self) -> None:
        self.history.dead |= dead_entries(self.server, self.topics)
        for topic in sorted_set_topics(self.topics):
            skipped = ID_BYTES if self.history.topics[topic.name].kind == "delayed" else 0
            for slot in range(topic.slots):
                for content in self.server.call("ZRANGE", f"dead{{{topic.name}_{slot}}}", 0, -1):
                    self.history.dead.add((topic.name, content[skipped:].decode()))

    def _note_holds(self) -> None:
        for (store, key), holds in self.server.holds.items():
            topic, _, slot = store.decode().rpartition("_")
            if topic == RECURRING:
                continue
            skipped = ID_BYTES if self.history.topics[topic].kind == "delayed" else 0
            self.history.note_holds(topic, int(slot), key[skipped:].decode(), holds)

    def _check_slots(self) -> None:
        with self.server.redis.connect() as client:
            for topic in sorted_set_topics(self._stored if self.plan.schedules else self.topics):
                try:
                    check_topic(client, topic.name)
                except AssertionError as error:
                    self.world.failed(f"slots: {error}")
        process = self.world.process("auditor")
        self.world.spawn(process, lambda: self._check_streams(self.client(process)), "auditor")
        self.world.run(self.world.elapsed_s + DRAIN_S, lambda: not process.tasks)

    def _check_streams(self, client: RmqClient) -> None:
        with self.server.redis.connect() as plain:
            for topic in streams(self.topics):
                try:
                    check_stream(client, plain, topic)
                except AssertionError as error:
                    self.world.failed(f"slots: {error}")
        client.close()
