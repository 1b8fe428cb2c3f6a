"""Consuming processes of a simulation: listeners, listeners with batches, and programs that poll."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from rmq import DelayedQueue, Delivery, RmqClient, StreamDelivery, Topic, TopicType
from rmq.errors import LeaseLostError, RmqError
from tests.simulation.history import Run, bits_of
from tests.simulation.plan import GROUPS, NUMBERED, WorkerPlan
from tests.simulation.scheduled_plan import TICKS
from tests.simulation.schedules import Ticking
from tests.simulation.world import Task

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

START_PAUSE_S = 0.5
FAILS, FAILS_OFTEN, FAILS_MOSTLY = 0.08, 0.25, 0.9
"""So many handlings fail; the second number is a harsh plan's, the third that of one content of a sparse plan."""

MOST_PUT_BACK = 6
"""So often a value of a delayed queue is put back at most: it comes back after up to minutes then."""

LONG, LONG_IF_HARD = 0.006, 0.5
"""So many handlings take about as long as a lease; the second number is that of one content of a harsh or sparse plan,
in a stream of few entries: all others need not wait for long."""

LONGEST = 1.5
"""The handling of a content that takes long takes so many leases at most."""

SLOW_HANDLINGS, SLOW_S, OWNED_SLOW_S, FAILS_IF_SLOW = 1 / 80, (10.0, 100.0), (10.0, 20.0), 0.02
"""Of a plan with slow handlers: so many handlings are slow, so long they take, and so many fail. The third one is for
workers that own slots: there only one thread works on all that a slot has."""


class HandlerFailedError(Exception):
    """A handler fails, as it shall."""


class Worker:
    """One life of a consuming process.

    Args:
        simulation: What it belongs to.
        plan: How it consumes.
    """

    def __init__(self, simulation: Simulation, plan: WorkerPlan) -> None:
        self.plan = plan
        self.world = simulation.world
        self.process = self.world.process(plan.name)
        self._simulation = simulation
        self.stopping = False
        self._stopped = simulation.backend(self.process).event()

    def start(self) -> None:
        """Begin."""
        self.world.spawn(self.process, self._work, "main")

    def stop(self) -> None:
        """End as on SIGTERM."""
        self.stopping = True
        self._stopped.set()

    def _work(self) -> None:
        simulation = self._simulation
        while not self.stopping:
            client = simulation.client(self.process, owns=simulation.plan.owned)
            if simulation.plan.schedules:
                client.observers.all.append(Ticking(simulation))
            try:
                if self.plan.style == "poll":
                    self._poll(client, simulation.topics)
                else:
                    self._listen(client, simulation.topics)
            except RmqError as error:  # a supervisor starts it again
                self.world.trace(self.process, "does not start", error)
                self._stopped.wait(START_PAUSE_S)
            finally:
                client.close()

    def _listen(self, client: RmqClient, topics: list[Topic]) -> None:
        batch = 5 if self.plan.style == "batch" else None
        listened = [topic for topic in topics if not self._is_queue(topic)]
        for topic in listened:
            for group in _groups(topic):
                where = _where(group)
                client.listener(topic, threads=self.plan.threads, batch=batch, on_lost=self._lost, **where)(
                    self._handle
                )
        jobs = [self._spawn(self._take_all, topic) for topic in topics if self._is_queue(topic)]
        if listened:
            client.start(idle="economy" if self._simulation.plan.economy else "normal")
        self._stopped.wait()
        if listened:
            client.stop(drain_s=30.0)
        self._await(jobs)

    def _is_queue(self, topic: Topic) -> bool:
        return self._simulation.history.topics[topic.name].kind == "delayed"

    def _spawn(self, run: Callable[..., object], topic: Topic, *other: object) -> Task:
        return self.world.spawn(self.process, lambda: run(topic, *other), topic.name)

    def _await(self, jobs: list[Task]) -> None:
        backend = self._simulation.backend(self.process)
        while any(not job.ended for job in jobs):
            backend.sleep(0.1)

    def _handle(self, given: Delivery | list[Delivery]) -> None:
        deliveries = given if isinstance(given, list) else [given]
        self._carry_out(deliveries)

    def _carry_out(self, deliveries: list[Delivery]) -> None:
        """Handle deliveries, for as long as their contents say, and fail where they say so."""
        runs = [self._begin(each) for each in deliveries]
        drawn = [self._draw(*each) for each in zip(deliveries, runs, strict=True)]
        self.world.sleep(sum(takes_s for takes_s, _ in drawn))
        fails = any(fails for _, fails in drawn)
        for run, delivery in zip(runs, deliveries, strict=True):
            run.end_s = self.world.now_s
            run.outcome = "failed" if fails else "late" if delivery.lost else "acked"
        if fails:
            raise HandlerFailedError

    def _lost(self, delivery: Delivery) -> None:
        """Note that a lease was lost."""
        for run in self._simulation.history.runs:
            if (run.life, run.topic, run.content) == (self.process.number, _reader(delivery), delivery.text) and (
                run.claimed_ms == delivery.claimed_ms
            ):
                run.lost_s = self.world.now_s

    def _poll(self, client: RmqClient, topics: list[Topic]) -> None:
        jobs = [
            self._spawn(self._take_all, topic)
            if self._is_queue(topic)
            else self._spawn(lambda topic, group: self._pull(client, topic, group), topic, group)
            for topic in topics
            for group in _groups(topic)
        ]
        self._stopped.wait()
        self._await(jobs)

    def _take_all(self, topic: Topic) -> None:
        """Take values out of a delayed queue."""
        client = self._simulation.client(self.process)
        while not self.stopping:
            try:
                with DelayedQueue(client, topic.name, slots=topic.slots, lease=topic.lease) as queue:
                    while not self.stopping:
                        if (delivery := queue.claim_soon(1.0)) is not None:
                            self._take(queue, delivery)
            except RmqError as error:
                self.world.trace(self.process, "taking failed", type(error).__name__)
                self._stopped.wait(START_PAUSE_S)
        client.close()

    def _take(self, queue: DelayedQueue, delivery: Delivery) -> None:
        """Do what the ways of taking do: finish, put back, or keep at once."""
        if self.world.now_s > delivery.lease_until_s - 0.5:
            queue.put_back(delivery, HandlerFailedError())
            return
        run = self._begin(delivery, queue.value_of(delivery).decode())
        takes_s, fails = self._draw(delivery, run)
        if not fails and takes_s < 0.01:
            run.end_s, run.outcome = self.world.now_s, "acked"
            queue.keep(delivery)
            return
        self.world.sleep(min(takes_s, 0.02))
        run.end_s, run.outcome = self.world.now_s, "failed" if fails else "acked"
        try:
            if fails:
                queue.put_back(delivery, HandlerFailedError())
            else:
                queue.finish(delivery)
        except LeaseLostError:
            run.outcome, run.lost_s = "late", self.world.now_s
        except RmqError:
            run.outcome = "unknown"
            raise

    def _pull(self, client: RmqClient, topic: Topic, group: str | None) -> None:
        where = _where(group)
        while not self.stopping:
            try:
                consumer = client.consumer(topic, **where)
                while not self.stopping:
                    deliveries = consumer.poll(max_messages=10, timeout=1.0)
                    self._settle(deliveries)
                consumer.close()
            except RmqError as error:
                self.world.trace(self.process, "poll failed", type(error).__name__)
                self._stopped.wait(START_PAUSE_S)

    def _settle(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            if self.world.now_s > delivery.lease_until_s - 0.5:  # nobody renews for a consumer
                continue
            run = self._begin(delivery)
            takes_s, fails = self._draw(delivery, run)
            self.world.sleep(min(takes_s, 0.02))
            run.end_s = self.world.now_s
            run.outcome = "failed" if fails else "acked"
            try:
                if not (delivery.nack(error="as it shall") if fails else delivery.ack()):
                    run.outcome, run.lost_s = "late", self.world.now_s
            except RmqError:
                run.outcome = "unknown"
                raise

    def _begin(self, delivery: Delivery, content: str = "") -> Run:
        run = Run(
            self.plan.name,
            self.process.number,
            _reader(delivery),
            delivery.slot,
            content or delivery.text,
            delivery.claimed_ms,
            delivery.claim_score // 1000,
            delivery.store_score,
            delivery.attempt,
            delivery.fencing_token or 0,
            self.world.now_s,
            delivery.lease_until_s,
        )
        history = self._simulation.history
        if isinstance(delivery, StreamDelivery):
            run.entry, run.score, run.stamp = delivery.id, delivery.time_ms, run.claimed_ms
        kind = history.topics[run.topic].kind
        if kind in NUMBERED:
            run.carried = (int(run.content.removeprefix(NUMBERED[kind])),)
        elif kind == "sum":
            bits = bits_of(delivery.value)
            run.carried = tuple(sent.number for sent in history.sent_of(run.topic, run.content) if sent.bit in bits)
            if len(run.carried) != len(bits) or len(bits) != delivery.merged:
                run.wrong = f"{delivery.merged} sends, bits {sorted(bits)}"
        elif kind != TICKS:
            with suppress(ValueError):
                run.carried = (int(delivery.body or b""),)
            if not run.carried:
                run.wrong = f"body {delivery.body!r}"
        history.runs.append(run)
        self._simulation.faults.handler_begins(self.plan.name)
        self.world.trace(self.process, "begins", run.topic, run.content, run.attempt, run.carried)
        return run

    def _draw(self, delivery: Delivery, run: Run) -> tuple[float, bool]:
        """Return how long a delivery takes, and whether it fails: always the same for the same delivery."""
        chance = Random(f"{self._simulation.plan.seed} {run.topic} {run.content} {run.attempt} {delivery.body!r}")
        draw, plan = chance.random(), self._simulation.plan
        # of a harsh plan one content is mostly handled so: then a lease is lost, and who has it next is at it for long
        if plan.slow:
            slow_s = chance.uniform(*(OWNED_SLOW_S if plan.owned else SLOW_S))
            return slow_s if draw < SLOW_HANDLINGS else draw * 0.02, chance.random() < FAILS_IF_SLOW
        hard = run.content.startswith("c0") or (run.entry and int(run.content[1:]) % (8 if plan.harsh else 25) == 0)
        long = LONG_IF_HARD if (plan.harsh or plan.sparse) and hard else LONG
        if draw < long:
            takes_s = chance.uniform(0.3, LONGEST) * delivery.topic.lease_s
        else:
            takes_s = chance.uniform(0, 1.0) if draw < long + 0.03 else draw * 0.02
        if run.attempt > MOST_PUT_BACK and self._simulation.history.topics[run.topic].kind == "delayed":
            return takes_s, False
        fails = FAILS_OFTEN if plan.harsh else FAILS_MOSTLY if plan.sparse and hard else FAILS
        return takes_s, chance.random() < fails


def _groups(topic: Topic) -> Sequence[str | None]:
    """Return for which groups a topic is consumed; `None` where it has none."""
    return GROUPS if topic.type is TopicType.STREAM else (None,)


def _where(group: str | None) -> dict[str, Any]:
    return {} if group is None else {"group": group, "start": "all"}


def _reader(delivery: Delivery) -> str:
    """Return under which name a delivery stands in the history."""
    name = delivery.topic.name
    return f"{name}@{delivery.group}" if isinstance(delivery, StreamDelivery) else name
