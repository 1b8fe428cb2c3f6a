"""Consuming processes of a simulation: listeners, listeners with batches, and programs that poll."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

from rmq import RmqClient, Topic
from rmq._model.deliveries import Delivery
from rmq.errors import RmqError
from tests.simulation.history import Run, bits_of
from tests.simulation.plan import WorkerPlan

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

START_PAUSE_S = 0.5
FAILS, FAILS_OFTEN = 0.08, 0.25
"""So many handlings fail; the second number is a harsh plan's."""


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
        for topic in topics:
            client.listener(topic, threads=self.plan.threads, batch=batch, on_lost=self._lost)(self._handle)
        client.start()
        self._stopped.wait()
        client.stop(drain_s=30.0)

    def _handle(self, given: Delivery | list[Delivery]) -> None:
        deliveries = given if isinstance(given, list) else [given]
        self._carry_out(deliveries)

    def _carry_out(self, deliveries: list[Delivery]) -> None:
        """Handle deliveries, for as long as their contents say, and fail where they say so."""
        runs = [self._begin(each) for each in deliveries]
        drawn = [self._draw(each) for each in deliveries]
        self.world.sleep(sum(takes_s for takes_s, _ in drawn))
        fails = any(fails for _, fails in drawn)
        for run, delivery in zip(runs, deliveries, strict=True):
            run.end_s = self.world.now_s
            run.outcome = "late" if delivery.lost else "failed" if fails else "acked"
        if fails:
            raise HandlerFailedError

    def _lost(self, delivery: Delivery) -> None:
        """Note that a lease was lost."""
        for run in self._simulation.history.runs:
            if (run.life, run.topic, run.content) == (self.process.number, delivery.topic.name, delivery.text) and (
                run.claimed_ms == delivery.claimed_ms
            ):
                run.lost_s = self.world.now_s

    def _poll(self, client: RmqClient, topics: list[Topic]) -> None:
        jobs = [
            self.world.spawn(self.process, lambda topic=topic: self._pull(client, topic), topic.name)
            for topic in topics
        ]
        backend = self._simulation.backend(self.process)
        self._stopped.wait()
        while any(not job.ended for job in jobs):
            backend.sleep(0.1)

    def _pull(self, client: RmqClient, topic: Topic) -> None:
        while not self.stopping:
            try:
                consumer = client.consumer(topic)
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
            takes_s, fails = self._draw(delivery)
            self.world.sleep(min(takes_s, 0.02))
            run.end_s = self.world.now_s
            run.outcome = "failed" if fails else "acked"
            try:
                if not (delivery.nack(error="as it shall") if fails else delivery.ack()):
                    run.outcome, run.lost_s = "late", self.world.now_s
            except RmqError:
                run.outcome = "unknown"
                raise

    def _begin(self, delivery: Delivery) -> Run:
        run = Run(
            self.plan.name,
            self.process.number,
            delivery.topic.name,
            delivery.slot,
            delivery.text,
            delivery.claimed_ms,
            delivery.claim_score // 1000,
            delivery.store_score,
            delivery.attempt,
            delivery.epoch,
            self.world.now_s,
            delivery.lease_until_s,
        )
        history = self._simulation.history
        if history.topics[run.topic].kind == "sum":
            bits = bits_of(delivery.value)
            run.carried = tuple(
                sent.number
                for sent in history.sends
                if (sent.topic, sent.content) == (run.topic, run.content) and sent.bit in bits
            )
            if len(run.carried) != len(bits) or len(bits) != delivery.merged:
                run.wrong = f"{delivery.merged} sends, bits {sorted(bits)}"
        else:
            with suppress(ValueError):
                run.carried = (int(delivery.body or b""),)
            if not run.carried:
                run.wrong = f"body {delivery.body!r}"
        history.runs.append(run)
        self.world.trace(self.process, "begins", run.topic, run.content, run.attempt, run.carried)
        return run

    def _draw(self, delivery: Delivery) -> tuple[float, bool]:
        """Return how long a delivery takes, and whether it fails: always the same for the same delivery."""
        chance = Random(
            f"{self._simulation.plan.seed} {delivery.topic.name} {delivery.text} {delivery.attempt} {delivery.body!r}"
        )
        draw, plan = chance.random(), self._simulation.plan
        # of a harsh plan one content is mostly handled so: then a lease is lost, and who has it next is at it for long
        long = 0.5 if plan.harsh and delivery.text.startswith("c0") else 0.006
        if draw < long:
            takes_s = chance.uniform(0.3, 1.5) * delivery.topic.lease_s
        else:
            takes_s = chance.uniform(0, 1.0) if draw < long + 0.03 else draw * 0.02
        return takes_s, chance.random() < (FAILS_OFTEN if plan.harsh else FAILS)
