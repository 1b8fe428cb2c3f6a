"""The checks of the simulation that need its server bite, too: accounts, known keys, sends, and what never drains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rmq import Producer, SendResult
from rmq.errors import RedisUnavailableError
from tests.simulation.plan import Fault, Plan, SendPlan, TopicPlan, WorkerPlan
from tests.simulation.runner import Runner
from tests.simulation.server import Server
from tests.simulation.simulation import Outcome, Simulation
from tests.support.core import Message

PLAN = Plan(
    seed=1,
    length_s=10.0,
    topics=(TopicPlan("range-topic", "range", 1, 2, 6),),
    workers=(WorkerPlan("worker0", "listener", 1),),
    sends=tuple(SendPlan(float(at_s), "producer0", 0, ((at_s, 20),)) for at_s in range(1, 8)),
)
META = "meta{range-topic_0}"


FAILOVER = replace(
    PLAN,
    sends=tuple(SendPlan(at / 10, "producer0", 0, ((at, 4_000),)) for at in range(10, 60)),
    faults=(Fault(5.0, "restart", for_s=0.5, what=2.0),),
)
"""A replica that lacks two seconds of sends takes over."""


def simulated(meddle: Callable[[Simulation], object]) -> Outcome:
    """Return what comes of the plan, when somebody meddles with it after 4 seconds."""

    class Meddled(Simulation):
        def __init__(self, plan: Plan, server: Server, *, lines: bool = False) -> None:
            super().__init__(plan, server, lines=lines)
            self.world.at(4.5, lambda: meddle(self))

    with pytest.MonkeyPatch.context() as patch, Runner() as runner:
        patch.setattr("tests.simulation.runner.Simulation", Meddled)
        return runner.run(PLAN)


def claim_at_once(simulation: Simulation) -> None:
    """Claim a content that nobody has sent, in the name of nobody."""
    simulation.server.call("ZADD", "prepare{range-topic_0}", simulation.world.now_ms * 1000 + 6, "c-none")
    simulation.server.call("HINCRBY", META, "accepted", 1)


@pytest.mark.parametrize(
    ("meddle", "kinds"),
    [
        (lambda simulation: None, set[str]()),
        (lambda simulation: simulation.server.call("HINCRBY", META, "accepted", 1), {"accounts", "slots"}),
        (lambda simulation: simulation.server.call("HSET", "body{range-topic_0}", "c-none", "1"), {"slots"}),
        (claim_at_once, {"unexpected", "held up"}),
        (lambda simulation: simulation.server.call("HSET", META, "paused", "1"), {"starved", "lost"}),
    ],
)
def test_a_check_finds_what_is_meddled_with(meddle: Callable[[Simulation], object], kinds: set[str]) -> None:
    outcome = simulated(meddle)
    assert outcome.kinds == kinds
    assert outcome.runs > 0, "no handler began: then most checks find nothing"


@pytest.mark.parametrize(
    ("error", "kind"),
    [(None, "unexecuted"), (RedisUnavailableError("no reply"), "")],
)
def test_an_accepted_send_was_carried_out(monkeypatch: pytest.MonkeyPatch, error: Exception | None, kind: str) -> None:
    def send(*_: object) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr("rmq._sending.producer.Producer.send", send)
    assert simulated(lambda simulation: None).kinds == ({kind} if kind else set())


def test_a_send_is_told_what_became_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each send of the plan is a new message."""
    send = Producer.send

    def tell(producer: Producer, message: Message) -> SendResult:
        return replace(send(producer, message), new=0, merged=1)

    monkeypatch.setattr(Producer, "send", tell)
    assert simulated(lambda simulation: None).kinds == {"told"}


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_plan_does_not_end_while_a_send_is_still_on_its_way(seed: int) -> None:
    """It was sent again, and has been handled; then what was held up arrives, and is to be handled, too."""
    plan = replace(
        PLAN,
        seed=seed,
        length_s=3.0,
        sends=tuple(SendPlan(at_s, "producer0", 0, ((1, 20),)) for at_s in (0.5, 1.5)),
        faults=(Fault(1.0, "stall", "producer0", 3.0 + seed / 1_000),),
    )
    with Runner() as runner:
        assert not runner.run(plan).violations


def test_a_process_that_was_paused_in_its_stop_goes_on_at_the_end() -> None:
    faults = (Fault(3.0, "stop", "worker0", 0.5), Fault(3.000_01, "pause", "worker0", 30.0))
    with Runner() as runner:
        assert not runner.run(replace(PLAN, faults=faults)).violations


@pytest.mark.parametrize("replicated", [False, True])
def test_a_failover_forgets_accepted_sends_only_where_they_did_not_wait_for_a_replica(replicated: bool) -> None:
    with Runner() as runner:
        outcome = runner.run(replace(FAILOVER, replicated=replicated))
    assert not outcome.violations
    assert (outcome.forgotten == 0) == replicated


def test_a_send_that_no_replica_has_and_that_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq._transport.exchange.Exchange._unconfirmed", lambda self, index, missing: SendResult(1, 0))
    with Runner() as runner:
        assert runner.run(replace(FAILOVER, replicated=True)).kinds == {"lost"}
