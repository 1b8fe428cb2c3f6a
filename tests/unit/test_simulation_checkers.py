"""Each checker of the simulation bites: it finds its fault in a history made by hand, and nothing without the fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from rmq import Topic, TopicType
from rmq._broker.sends import QueueSends
from rmq._model.batches import Batch, EncodedMessage
from tests.simulation import checkers
from tests.simulation.history import FOREVER_S, SLOW_PATIENCE_S, History, Run, ScheduleMark, Sent, Trouble
from tests.simulation.plan import TopicPlan
from tests.simulation.simulation import Sending
from tests.simulation.steps import Hold, SlotState, Step, Steps
from tests.simulation.stream_steps import GroupState, Held, StreamSteps
from tests.simulation.world import EPOCH_MS, START_S, HungError, World

LEASE_S = 5


def at_ms(seconds: float) -> int:
    """Return Redis' time so many seconds after the beginning."""
    return EPOCH_MS + round(seconds * 1000)


def sent(number: int, at_s: float, **other: Any) -> Sent:
    """Return an accepted send of the content `c`."""
    made = Sent(number, "topic", "c", 100, number, at_ms(at_s) + 100, START_S + at_s, "accepted")
    made.executed_ms, made.executed_s = [at_ms(at_s)], [START_S + at_s]
    for name, value in other.items():
        setattr(made, name, value)
    return made


def run(claimed_s: float, end_s: float, carried: Sequence[int] = (0,), **other: Any) -> Run:
    """Return an acked handling of the content `c` in process `a`."""
    made = Run("a", 0, "topic", 0, "c", at_ms(claimed_s), at_ms(claimed_s), at_ms(claimed_s), 1, 0, 0.0, 0.0)
    made.start_s, made.end_s = START_S + claimed_s + 0.001, START_S + end_s
    made.lease_until_s, made.carried, made.outcome = START_S + claimed_s + LEASE_S, tuple(carried), "acked"
    for name, value in other.items():
        setattr(made, name, value)
    return made


def history(*parts: Sent | Run | Trouble, kind: str = "range") -> History:
    """Return a history of one topic."""
    made = History({"topic": TopicPlan("topic", kind, 1, LEASE_S, 6)})
    for part in parts:
        target: list[Any] = made.sends if isinstance(part, Sent) else made.runs if isinstance(part, Run) else []
        target.append(part)
    made.troubles = [part for part in parts if isinstance(part, Trouble)]
    return made


def impatient(made: History) -> History:
    """Return it as one of a plan with slow handlers."""
    made.patience_s = SLOW_PATIENCE_S
    return made


def moved(made: History, *moves: tuple[float, str]) -> History:
    """Return it as one in which processes stopped or started, so many seconds after the beginning."""
    made.moves = [(START_S + at_s, who) for at_s, who in moves]
    return made


def held(made: History, from_s: float, lease_s: float, to_s: float = FOREVER_S, *, other: bool = False) -> History:
    """Return it as one in which the content, or another one of its slot, was claimed; times from the beginning."""
    hold = Hold(at_ms(from_s), at_ms(lease_s), at_ms(to_s) if to_s < FOREVER_S else FOREVER_S)
    made.note_holds("topic", 0, "d" if other else "c", [hold])
    return made


def entry(made: History) -> History:
    """Return it as one of a stream's group, whose handlings are of one entry."""
    for each in made.runs:
        each.entry = "1-0"
    return made


def _left(claimed_s: float, end_s: float = FOREVER_S) -> History:
    """Return one in which a handling ended late or never, and another process claims the next send of its content."""
    first, second = run(1, end_s, epoch=1, outcome="late"), run(claimed_s, claimed_s + 1, (0, 1), process="b", epoch=2)
    return history(sent(0, 0.5), first, sent(1, 20), second)


def replicated(made: History) -> History:
    """Return it as one in which sends wait for a replica."""
    made.replicated = True
    return made


def economy(made: History) -> History:
    """Return it as one whose workers idle in economy."""
    made.economy = True
    return made


def scheduled(*at_s: tuple[float, float], catch_up: bool = True, what: str = "remove", troubles: Any = ()) -> History:
    """Return one of a schedule of every ten seconds: for each message its due time and when it was sent.

    It was put after a second. Something became of it after 31 s, and it was removed after 40 s.
    """
    ticks = [
        sent(number, at, topic="ticks", content=f"s/{_iso(due)}", state="unknown")
        for number, (due, at) in enumerate(at_s)
    ]
    made = history(*ticks, *troubles)
    made.topics["ticks"] = TopicPlan("ticks", "ticks", 1, LEASE_S, 6)
    made.marks = [
        ScheduleMark("s", each, at_ms(at), at_ms(at), 10_000 if each == "put" else 0, catch_up, True)
        for at, each in ((1, "put"), (31, what), (40, "remove"))
    ]
    return made


def _iso(at_s: float) -> str:
    return datetime.fromtimestamp(at_ms(at_s) / 1_000, UTC).isoformat()


def trouble(kind: str, from_s: float, to_s: float, who: str = "a") -> Trouble:
    """Return a trouble of process `a`."""
    return Trouble(kind, who, START_S + from_s, START_S + to_s)


@dataclass(frozen=True)
class Case:
    """A fault, and a history that differs only in that it has none."""

    name: str
    bad: History
    good: History


TIMES = ((10, 10), (20, 20), (30, 30))
"""Each due time of `scheduled`, sent at once."""

OTHER = {"process": "b", "life": 1}

CASES = (
    Case("lost", history(sent(0, 1)), history(sent(0, 1), run(1.2, 1.3))),
    Case(
        "lost",  # the only delivery was claimed before the second send
        history(sent(0, 1), sent(1, 1.5), run(1.2, 1.6)),
        history(sent(0, 1), sent(1, 1.1), run(1.2, 1.6, (1,))),
    ),
    Case(
        "lost",  # one of two sends that fold is not in the sum
        history(sent(0, 1), sent(1, 1.1), run(1.8, 1.9, (1,)), kind="sum"),
        history(sent(0, 1), sent(1, 1.1), run(1.8, 1.9, (0, 1)), kind="sum"),
    ),
    Case(
        "lost",  # the only handling failed
        history(sent(0, 1), run(1.2, 1.3, outcome="failed")),
        history(sent(0, 1), run(1.2, 9, outcome="late")),
    ),
    Case(
        "lost",  # a replica had it
        replicated(history(sent(0, 1), trouble("forget", 0.5, 1.5, ""))),
        history(sent(0, 1), trouble("forget", 0.5, 1.5, "")),
    ),
    Case("unexpected", history(sent(0, 1), run(1.2, 1.3, (7,))), history(sent(0, 1), run(1.2, 1.3))),
    Case("unexpected", history(sent(0, 1.25), run(1.2, 1.3)), history(sent(0, 1), run(1.2, 1.3))),
    Case("unexpected", history(sent(0, 1), run(1.2, 1.3, wrong="body None")), history(sent(0, 1), run(1.2, 1.3))),
    Case(
        "duplicated",
        history(sent(0, 1), run(1.2, 1.3), run(2.0, 2.1, attempt=2)),
        history(sent(0, 1), run(1.2, 1.3, outcome="failed"), run(2.0, 2.1, attempt=2)),
    ),
    Case(
        "duplicated",  # a lost hint is no cause
        history(sent(0, 1), run(1.2, 1.3), run(2.0, 2.1, attempt=2), trouble("lose_hints", 0, 3)),
        history(sent(0, 1), run(1.2, 1.3), run(2.0, 2.1, attempt=2), trouble("cut", 1.25, 1.75)),
    ),
    Case(
        "counted twice",
        history(sent(0, 1), sent(1, 2), run(1.6, 1.7), run(2.6, 2.7, (0, 1)), kind="sum"),
        history(sent(0, 1), sent(1, 2), run(1.6, 1.7), run(2.6, 2.7, (1,)), kind="sum"),
    ),
    Case(
        "overlap",
        history(sent(0, 1), run(1.2, 9), run(6.3, 6.4, **OTHER)),
        history(sent(0, 1), run(1.2, 9), run(6.3, 6.4, **OTHER), trouble("pause", 2, 8)),
    ),
    Case(
        "overlap",  # the pause was too short to lose the lease
        history(sent(0, 1), run(1.2, 9), run(6.3, 6.4, **OTHER), trouble("pause", 2, 3)),
        history(sent(0, 1), run(1.2, 6.2), run(6.3, 6.4, **OTHER), trouble("pause", 2, 3)),
    ),
    Case(
        "overlap",  # the owner before was given no time of its lease
        history(sent(0, 1), run(1.2, 9, epoch=1), run(3, 4, epoch=2, **OTHER), trouble("zk_expire", 2, 2.5)),
        history(sent(0, 1), run(1.2, 9, epoch=1), run(6.3, 6.4, epoch=2, **OTHER), trouble("zk_expire", 2, 2.5)),
    ),
    Case(
        "stolen",
        history(sent(0, 1), run(1.2, 9, outcome="late", lost_s=START_S + 7)),
        history(
            sent(0, 1), run(1.2, 9, outcome="late", lost_s=START_S + 7), run(10, 10.1), trouble("stall", 2, 8)
        ),
    ),
    Case(
        "late begin",
        history(sent(0, 1), run(1.2, 9, start_s=START_S + 6.5)),
        history(sent(0, 1), run(1.2, 9, start_s=START_S + 6.1)),
    ),
    Case(
        "serial",
        history(sent(0, 1), run(1.2, 2, epoch=1), run(1.5, 1.6, epoch=1, content="d", carried=())),
        history(sent(0, 1), run(1.2, 2, epoch=1), run(2.1, 2.2, epoch=1, content="d", carried=())),
    ),
    Case(
        "fenced",  # two processes with one epoch
        history(sent(0, 1), run(1.2, 1.3, epoch=4), run(2.2, 2.3, epoch=4, **OTHER), trouble("cut", 1, 3)),
        history(sent(0, 1), run(1.2, 1.3, epoch=4), run(2.2, 2.3, epoch=5, **OTHER), trouble("cut", 1, 3)),
    ),
    Case(
        "fenced",  # the older owner claims after the newer one
        history(sent(0, 1), run(1.2, 1.3, epoch=5), run(2.2, 2.3, epoch=4, **OTHER), trouble("cut", 1, 3)),
        history(
            sent(0, 1),
            run(1.2, 1.3, epoch=5),
            run(2.2, 2.3, epoch=4, **OTHER),
            trouble("cut", 1, 3),
            trouble("forget", 1.1, 2.0, ""),
        ),
    ),
    Case(
        "early",
        history(sent(0, 1), run(1.05, 1.3, score=0)),
        history(sent(0, 1), run(1.1, 1.3, score=0)),
    ),
    Case(
        "early",  # it has a due time in store that is still to come
        history(sent(0, 1), run(1.2, 1.3, score=at_ms(1.25))),
        history(sent(0, 1), run(1.2, 1.3, score=at_ms(1.2))),
    ),
    Case(
        "early",
        history(sent(0, 1, fixed_ms=at_ms(3)), run(2.9, 3.1, score=0), kind="fixed"),
        history(sent(0, 1, fixed_ms=at_ms(3)), run(3.0, 3.1, score=0), kind="fixed"),
    ),
    Case(
        "order",
        history(
            sent(0, 1), run(1.2, 1.3, score=100), run(1.2, 1.3, (), score=101, content="d"), kind="priority"
        ),
        history(
            sent(0, 1), run(1.2, 1.3, score=101), run(1.2, 1.3, (), score=100, content="d"), kind="priority"
        ),
    ),
    Case(
        "order",  # two claims that were renewed together are no claim
        history(sent(0, 1), run(1.2, 1.3, score=9, stamp=1), run(1.3, 1.4, (), score=8, content="d", stamp=1)),
        history(
            sent(0, 1),
            run(1.2, 3.3, score=9, stamp=at_ms(3)),
            run(1.3, 3.4, (), score=8, content="d", stamp=at_ms(3)),
        ),
    ),
    Case(
        "fifo",  # the entry that was sent first is handled last
        history(sent(0, 1), run(1.2, 1.3, epoch=1, entry="9-1"), run(1.4, 1.5, epoch=1, entry="9-0")),
        history(sent(0, 1), run(1.2, 1.3, epoch=1, entry="9-0"), run(1.4, 1.5, epoch=1, entry="10-0")),
    ),
    Case(
        "duplicated",  # an entry that comes again, and not another one of the same send
        history(sent(0, 1), run(1.2, 1.3, entry="1-0"), run(1.4, 1.5, entry="2-0"), run(1.6, 1.7, entry="1-0")),
        history(sent(0, 1), run(1.2, 1.3, entry="1-0"), run(1.4, 1.5, entry="2-0")),
    ),
    Case(
        "starved",
        history(sent(0, 1), run(40, 41)),
        history(sent(0, 1), run(40, 41), trouble("stall", 2, 30)),
    ),
    Case(
        "starved",  # who claims it in the end was busy with others for 1.5 s of the time
        history(sent(1, 0, content="d"), run(1, 2.5, (1,), content="d"), sent(0, 2), run(33, 34)),
        history(sent(1, 0, content="d"), run(1, 2.5, (1,), content="d"), sent(0, 2), run(32.4, 34)),
    ),
    Case(
        "starved",  # nobody may depend on hints
        history(sent(0, 1), run(40, 41), trouble("lose_hints", 0, 60)),
        history(sent(0, 1), run(20, 21), trouble("lose_hints", 0, 60)),
    ),
    Case(
        "starved",  # but in economy: for one topic of one slot up to 60 s longer
        economy(history(sent(0, 1), run(92, 93), trouble("lose_hints", 0, 60))),
        economy(history(sent(0, 1), run(90, 91), trouble("lose_hints", 0, 60))),
    ),
    Case(
        "starved",  # without a lost hint economy costs nothing
        economy(history(sent(0, 1), run(40, 41))),
        economy(history(sent(0, 1), run(20, 21))),
    ),
    Case(
        "stolen",  # a handler that outlasts the drain time of a stop loses what it has; one of another process does not
        moved(history(sent(0, 0.5), run(1, 90, lost_s=START_S + 61)), (20, "b")),
        moved(history(sent(0, 0.5), run(1, 90, lost_s=START_S + 61)), (20, "a")),
    ),
    Case(
        "stolen",  # but not before
        moved(history(sent(0, 0.5), run(1, 90, lost_s=START_S + 31)), (20, "a")),
        moved(history(sent(0, 0.5), run(1, 90, lost_s=START_S + 51)), (20, "a")),
    ),
    Case(
        "overlap",  # with ZooKeeper its slot passes to others, whoever has come or gone
        moved(history(sent(0, 1), run(2, 90, epoch=1), run(31, 32, process="b", epoch=2)), (3, "c")),
        moved(history(sent(0, 1), run(2, 90, epoch=1), run(34, 35, process="b", epoch=2)), (3, "c")),
    ),
    Case(
        "starved",  # with ZooKeeper the next owner of a slot waits for what a stop has left to its lease
        entry(moved(_left(61), (3, "c"))),
        entry(moved(_left(61), (3, "a"))),
    ),
    Case(
        "starved",  # also if that has ended before its lease
        entry(moved(_left(67, 34), (3, "c"))),
        entry(moved(_left(67, 34), (3, "a"))),
    ),
    Case(
        "starved",  # but not for longer than that lease
        entry(moved(_left(70), (3, "a"))),
        entry(moved(_left(67), (3, "a"))),
    ),
    Case(
        "starved",  # what stands in prepare, since the reply to its claim was lost, is claimed again after its lease
        held(history(sent(0, 40), run(100, 101), trouble("lose_reply", 1, 1.5)), 1, 60),
        held(history(sent(0, 40), run(100, 101), trouble("lose_reply", 1, 1.5)), 1, 75),
    ),
    Case(
        "starved",  # but what was settled is
        held(history(sent(0, 5), run(60, 61)), 1, 31, 6),
        held(history(sent(0, 5), run(60, 61)), 1, 36, 31),
    ),
    Case(
        "starved",  # without ZooKeeper others of its slot do not hold it up
        held(history(sent(0, 5), run(60, 61)), 1, 36, 31, other=True),
        held(history(sent(0, 5), run(60, 61, epoch=2)), 1, 36, 31, other=True),
    ),
    Case(
        "starved",  # a send that meets its content in the store is due when that is
        history(sent(0, 1, what=60_000), sent(1, 100), run(140, 141)),
        history(sent(0, 1, what=130_000), sent(1, 100), run(140, 141)),
    ),
    Case(
        "starved",  # and one that meets it waiting for a retry, up to 2 s after its failure, with that
        history(sent(0, 1), run(1.2, 2, outcome="failed"), sent(1, 99.5), run(130.5, 131, (1,))),
        history(sent(0, 97), run(98, 99, outcome="failed"), sent(1, 99.5), run(130.5, 131, (1,))),
    ),
    Case(
        "starved",  # beside slow handlers nobody sleeps for long
        impatient(history(sent(0, 1), run(7, 8))),
        impatient(history(sent(0, 1), run(6, 7))),
    ),
    Case(
        "held up",  # what was claimed waits behind another handler
        impatient(history(sent(0, 1), run(1.2, 9, start_s=START_S + 6.5))),
        impatient(history(sent(0, 1), run(1.2, 9, start_s=START_S + 6))),
    ),
    Case(
        "held up",
        history(sent(0, 1), run(1.2, 40, start_s=START_S + 32)),
        history(sent(0, 1), run(1.2, 40, start_s=START_S + 32), trouble("pause", 2, 33)),
    ),
    Case(
        "held up",  # what was claimed was neither begun nor given back
        held(history(sent(0, 1), run(8, 9)), 1.2, 6.2, 7),
        held(history(sent(0, 1), run(8, 9)), 1.2, 6.2, 4),
    ),
    Case(
        "held up",
        held(history(sent(0, 1), run(0.5, 0.6), run(8, 9)), 1.2, 6.2, 7),
        held(history(sent(0, 1), run(1.2, 6)), 1.2, 6.2, 7),
    ),
    Case(
        "held up",  # what was handled was not settled
        held(history(sent(0, 1), run(1.2, 1.3)), 1.2, 6.2, 7),
        held(history(sent(0, 1), run(1.2, 1.3)), 1.2, 6.2, 6),
    ),
    Case(
        "held up",  # with ZooKeeper its slot passed to an owner whose session had ended shortly before
        moved(held(history(sent(0, 1), run(1.2, 1.3)), 1.2, 6.2, 7), (0.9, "b")),
        moved(held(history(sent(0, 1), run(1.2, 1.3, epoch=1)), 1.2, 6.2, 7), (0.9, "b")),
    ),
    Case(
        "held up",  # it was settled, or given back, late
        held(history(sent(0, 1), run(1.2, 1.3)), 1.2, 90, 40),
        held(history(sent(0, 1), run(1.2, 20)), 1.2, 90, 40),
    ),
    Case(
        "held up",  # the reply to a claim was lost
        held(history(sent(0, 1), run(8, 9), trouble("lose_hints", 1.1, 1.6)), 1.2, 6.2, 7),
        held(history(sent(0, 1), run(8, 9), trouble("lose_reply", 1.1, 1.6)), 1.2, 6.2, 7),
    ),
    Case("schedule missing", scheduled(*TIMES[:1], *TIMES[2:]), scheduled(*TIMES)),
    Case("schedule missing", scheduled(*TIMES[:1], *TIMES[2:]), scheduled(TIMES[0], (20, 30), catch_up=False)),
    Case("schedule missing", scheduled(*TIMES[1:], catch_up=False), scheduled(*TIMES, catch_up=False)),
    Case("schedule missing", scheduled(*TIMES, what="run"), scheduled(*TIMES, (31, 31), what="run")),
    Case(
        "schedule missing",  # it is late
        scheduled(*TIMES[:2], (30, 70)),
        scheduled(*TIMES[:2], (30, 70), troubles=[trouble("kill", 29, 29.5)]),
    ),
    Case("schedule wrong", scheduled(*TIMES[:2], (30, 29)), scheduled(*TIMES)),
    Case("schedule wrong", scheduled(*TIMES, (25, 25)), scheduled(*TIMES)),
    Case("schedule wrong", scheduled(*TIMES, (35, 35), what="run"), scheduled(*TIMES, (31, 31), what="run")),
    Case("schedule wrong", scheduled(*TIMES, what="older"), scheduled(*TIMES)),
    Case(
        "schedule repeated",
        scheduled(*TIMES, (30, 31)),
        scheduled(*TIMES, (30, 31), troubles=[trouble("kill", 29, 29.5)]),
    ),
)  # fmt: skip


def _name(checker: Callable[..., object]) -> str:
    return checker.__name__.replace("_", " ")


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.name}" for number, case in enumerate(CASES)])
def test_a_checker_finds_its_fault(case: Case) -> None:
    checker = {_name(each): each for each in checkers.CHECKERS}[case.name]
    assert {found.kind for found in checker(case.bad)} == {case.name}
    assert not list(checker(case.good))


def test_every_checker_has_a_fault() -> None:
    assert {_name(each) for each in checkers.CHECKERS} == {case.name for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.name}" for number, case in enumerate(CASES)])
def test_no_checker_finds_anything_without_a_fault(case: Case) -> None:
    assert not checkers.check(case.good)


# --- steps

STORE, CONTENT = b"topic_0", b"c"
SCORE, NEXT = str(at_ms(1) * 1000 + 6).encode(), str(at_ms(2) * 1000 + 6).encode()


def step(name: str, *arguments: object, at_s: float = 2.0, keys: Sequence[bytes] = (STORE,)) -> Step:
    """Return a step that touches the slot."""
    return Step(name, at_ms(at_s), keys, [str(each).encode() for each in arguments])


def settle(epoch: int, *settlements: object, at_s: float = 2.0) -> Step:
    """Return a step that settles in the slot, alone."""
    return step("settle", *"123", "P", len(settlements) + 3, 6, epoch, "e", *settlements, at_s=at_s, keys=(STORE,) * 6)


def claimed(epoch: int = 0, **scores: bytes) -> SlotState:
    """Return a slot with claims."""
    return SlotState(epoch, {content.encode(): score for content, score in scores.items()})


def followed(first: Step, after: SlotState, second: Step, at_last: SlotState) -> list[str]:
    """Return what is found in the second of two steps; in the first one there is nothing to find."""
    steps = Steps({b"topic": LEASE_S * 1000})
    assert not steps.follow(step("stats"), STORE, SlotState())
    assert not steps.follow(first, STORE, after)
    return [found.split(":")[0] for found in steps.follow(second, STORE, at_last)]


def claim(*epochs: int, at_s: float = 2.0) -> Step:
    """Return a claim that names the slot as often as there are epochs."""
    values = [value for epoch in epochs for value in (4, epoch, "e", 10, 0)]
    return step("claim", 1, *"2345678", "P", *values, at_s=at_s, keys=(STORE,) * len(epochs))


CLAIM = claim(0, at_s=1.0)


@pytest.mark.parametrize(
    ("second", "at_last", "found"),
    [
        (settle(0, 0, 1, NEXT.decode(), 1, "c", 0), claimed(), ["stranger"]),
        (settle(0, 0, 1, SCORE.decode(), 1, "c", 0), claimed(), []),
        (settle(0, 1, "c", NEXT.decode(), "retry", 0, "", "", 0, 0), claimed(), ["stranger"]),
        (settle(0, 1, "c", SCORE.decode(), "retry", 0, "", "", 0, 0), claimed(), []),
        (step("extend", 0, "", 5000, NEXT.decode(), "c"), claimed(c=NEXT), ["stranger"]),
        (step("extend", 0, "", 5000, SCORE.decode(), "c"), claimed(c=NEXT), []),
        (claim(0, at_s=5.9), claimed(c=NEXT), ["stranger"]),
        (claim(0, at_s=6.0), claimed(c=NEXT), ["stranger"]),
        (claim(0, at_s=6.001), claimed(c=NEXT), []),
        (step("send", "c"), claimed(), ["stranger"]),
        (step("send", "c"), claimed(c=SCORE), []),
    ],
)
def test_a_claim_belongs_to_who_made_it(second: Step, at_last: SlotState, found: list[str]) -> None:
    assert followed(CLAIM, claimed(c=SCORE), second, at_last) == found


def test_a_content_that_is_no_text_is_named_all_the_same() -> None:
    content, other = b"\xac", b"\xff"
    steps = Steps({b"topic": LEASE_S * 1000})
    assert not steps.follow(step("stats"), STORE, SlotState())
    assert not steps.follow(claim(4, at_s=1.0), STORE, SlotState(4, {content: SCORE}))
    both = SlotState(5, {content: SCORE, other: NEXT})
    (found,) = steps.follow(claim(5), STORE, both)
    assert r"claims \xff while an older one has \xac" in found
    (found,) = steps.follow(step("send", "c"), STORE, SlotState(5, {other: NEXT}))
    assert r"of \xac to none" in found


@pytest.mark.parametrize(
    ("second", "at_last", "found"),
    [
        (claim(5), claimed(5, c=SCORE, d=NEXT), ["beside"]),
        (claim(5, at_s=6.1), claimed(5, c=SCORE, d=NEXT), []),
        (claim(5), claimed(5, c=SCORE), []),
        (claim(4), claimed(4, c=SCORE, d=NEXT), []),
        (claim(4, 5), claimed(5, c=SCORE, d=NEXT), ["beside"]),
        (claim(4, 4), claimed(4, c=SCORE, d=NEXT), []),
    ],
)
def test_an_owner_claims_nothing_beside_an_older_one(second: Step, at_last: SlotState, found: list[str]) -> None:
    assert followed(claim(4), claimed(4, c=SCORE), second, at_last) == found


@pytest.mark.parametrize(
    ("second", "found"),
    [
        (settle(4, 0, 1, SCORE.decode(), 1, "c", 0), ["fenced"]),
        (settle(5, 0, 1, SCORE.decode(), 1, "c", 0), []),
    ],
)
def test_an_older_owner_changes_nothing(second: Step, found: list[str]) -> None:
    assert followed(claim(5), claimed(5, c=SCORE), second, claimed(5)) == found


def test_a_call_that_names_a_slot_twice_counts_as_its_newest_owner() -> None:
    assert claim(5, 4).epochs() == {STORE: 5}


def test_times_in_which_contents_are_claimed_are_noted() -> None:
    steps = Steps({b"topic": LEASE_S * 1000})
    first, renewed = (f"{at_ms(at_s)}001".encode() for at_s in (1.0, 2.0))
    steps.follow(claim(0, at_s=1.0), STORE, SlotState(0, {b"c": first, b"d": first, b"e": first}))
    steps.follow(step("extend", "0", first, at_s=2.0), STORE, SlotState(0, {b"c": renewed, b"d": first, b"e": first}))
    steps.follow(
        settle(0, 0, 1, first.decode(), 1, "d", 0, at_s=3.0), STORE, SlotState(0, {b"c": renewed, b"e": first})
    )
    again = f"{at_ms(6.5)}001".encode()
    steps.follow(claim(0, at_s=6.5), STORE, SlotState(0, {b"c": renewed, b"e": again}))
    steps.forget()
    assert steps.holds == {
        (STORE, b"c"): [Hold(at_ms(1), at_ms(7), at_ms(7))],
        (STORE, b"d"): [Hold(at_ms(1), at_ms(6), at_ms(3))],
        (STORE, b"e"): [Hold(at_ms(1), at_ms(6), at_ms(6.5)), Hold(at_ms(6.5), at_ms(11.5), at_ms(11.5))],
    }
    assert [hold.ended for holds in steps.holds.values() for hold in holds] == [False, False, True, False]
    steps.follow(step("stats", at_s=8.0), STORE, SlotState(0, {b"c": renewed}))
    assert steps.holds[STORE, b"c"][1:] == [Hold(at_ms(2), at_ms(7))]  # claimed before the server was looked at


def test_claims_that_a_server_has_forgotten_are_nobodys() -> None:
    steps = Steps({b"topic": LEASE_S * 1000})
    steps.follow(step("stats"), STORE, SlotState())
    steps.follow(claim(5), STORE, claimed(5, c=SCORE))
    steps.forget()
    assert not steps.follow(claim(4), STORE, claimed(4, d=NEXT))


# --- steps of streams

ENTRY, OTHER_ENTRY = b"1-0", b"2-0"


def pending(epoch: int = 0) -> GroupState:
    """Return a group to whose consumer `me` an entry was delivered after a second."""
    return GroupState(epoch, {ENTRY: Held(b"me", 1, at_ms(1))})


def with_(state: GroupState, entry: bytes, held: Held | None) -> GroupState:
    """Return a group in which one entry is another one's, or nobody's."""
    left = {each: had for each, had in state.pending.items() if each != entry}
    return GroupState(state.epoch, left | ({entry: held} if held else {}))


def stream_settle(consumer: str, *settlements: object) -> Step:
    """Return a step of the group `g` that settles in the slot, alone."""
    part = (len(settlements) + 3, 5, 0, "", *settlements)
    return step("stream_settle", "g", consumer, *"345", "P", *part, keys=(STORE,) * 5)


def stream_step(name: str, epoch: int, consumer: str, *arguments: object, at_s: float = 2.0) -> Step:
    """Return a step of the group `g`."""
    if name == "stream_claim":
        return stream_claim(epoch, consumer, *arguments, at_s=at_s)
    return step(name, epoch, "e", "g", consumer, *arguments, at_s=at_s)


def stream_claim(epoch: int, consumer: str, *arguments: object, at_s: float = 2.0, before: bool = False) -> Step:
    """Return a claim of the group `g` from the slot, `before` from another slot before."""
    shared = ["g", consumer, *"345678", "P", 10]
    slots = [*([4, 9, "e", 0, 0] if before else []), 4 + len(arguments), epoch, "e", 0, 0, *arguments]
    stores = [b"topic_7", STORE] if before else [STORE]
    return step(
        "stream_claim", *shared, *slots, at_s=at_s, keys=[key for store in stores for key in (store, *[b"x"] * 8)]
    )


@pytest.mark.parametrize(
    ("second", "entry", "held", "found"),
    [
        (stream_step("stream_claim", 0, "me", 1, "1-0"), ENTRY, None, []),
        (stream_step("stream_claim", 0, "you", 1, "1-0"), ENTRY, None, ["stranger"]),
        (stream_step("stream_claim", 0, "me", 1, "2-0"), ENTRY, None, ["stranger"]),
        (stream_step("stream_claim", 0, "me", 2, "1-0"), ENTRY, None, ["stranger"]),
        (stream_step("stream_extend", 0, "me", 1, "1-0"), ENTRY, Held(b"me", 1, at_ms(2)), []),
        (stream_step("stream_extend", 0, "you", 1, "1-0"), ENTRY, Held(b"you", 1, at_ms(2)), ["stranger"]),
        (stream_step("stream_claim", 0, "you", at_s=5.9), ENTRY, Held(b"you", 2, at_ms(5.9)), ["stranger"]),
        (stream_step("stream_claim", 0, "you", at_s=6.0), ENTRY, Held(b"you", 2, at_ms(6.0)), []),
        (step("stream_trim"), ENTRY, None, ["stranger"]),
        (stream_step("stream_claim", 5, "you"), OTHER_ENTRY, Held(b"you", 1, at_ms(2)), ["beside"]),
        (stream_step("stream_claim", 5, "you", at_s=6.0), OTHER_ENTRY, Held(b"you", 1, at_ms(6)), []),
        (stream_step("stream_claim", 5, "me"), OTHER_ENTRY, Held(b"me", 1, at_ms(2)), []),
        (stream_step("stream_claim", 0, "you"), OTHER_ENTRY, Held(b"you", 1, at_ms(2)), []),
    ],
)
def test_a_delivery_of_an_entry_belongs_to_its_consumer(
    second: Step, entry: bytes, held: Held | None, found: list[str]
) -> None:
    steps = StreamSteps({b"topic": LEASE_S * 1000})
    assert not steps.follow(step("stream_stats"), STORE, b"g", GroupState())
    assert not steps.follow(stream_step("stream_claim", 0, "me", at_s=1.0), STORE, b"g", pending())
    assert [each.split(":")[0] for each in steps.follow(second, STORE, b"g", with_(pending(), entry, held))] == found


@pytest.mark.parametrize(
    ("second", "left", "found"),
    [
        (stream_settle("me", 0, 0, 1, 7001, 2), [], []),
        (stream_settle("me", 0, 0, 1, 7001, 2), [OTHER_ENTRY], ["stranger"]),
        (stream_settle("me", 0, 0, 1, 8001, 2), [], ["stranger", "stranger"]),
        (stream_settle("you", 0, 0, 1, 7001, 2), [], ["stranger", "stranger"]),
        (stream_step("stream_claim", 0, "me", 7001, 1, "1-0"), [OTHER_ENTRY], []),
    ],
)
def test_what_a_claim_has_read_in_a_name_of_its_own_is_acked_as_a_whole(
    second: Step, left: list[bytes], found: list[str]
) -> None:
    held = Held(b"me#7", 1, at_ms(1))
    steps = StreamSteps({b"topic": LEASE_S * 1000})
    steps.follow(stream_step("stream_claim", 0, "me"), STORE, b"g", GroupState(0, {ENTRY: held, OTHER_ENTRY: held}))
    after = GroupState(0, dict.fromkeys(left, held))
    assert [each.split(":")[0] for each in steps.follow(second, STORE, b"g", after)] == found


@pytest.mark.parametrize(("epoch", "found"), [(4, ["fenced"]), (5, [])])
def test_an_older_owner_changes_nothing_of_a_group(epoch: int, found: list[str]) -> None:
    steps = StreamSteps({b"topic": LEASE_S * 1000})
    steps.follow(step("stream_stats"), STORE, b"g", pending(5))
    second = stream_step("stream_claim", epoch, "me", 1, "1-0")
    assert [each.split(":")[0] for each in steps.follow(second, STORE, b"g", GroupState(5))] == found
    steps.forget()
    assert not steps.follow(second, STORE, b"g", pending(5))


@pytest.mark.parametrize(
    ("second", "entry", "held", "found"),
    [
        (stream_claim(0, "me", 1, "1-0", before=True), ENTRY, None, []),
        (stream_claim(0, "you", 1, "1-0", before=True), ENTRY, None, ["stranger"]),
        (stream_claim(5, "you", before=True), OTHER_ENTRY, Held(b"you", 1, at_ms(2)), ["beside"]),
        (stream_claim(5, "you", at_s=6.0, before=True), OTHER_ENTRY, Held(b"you", 1, at_ms(6)), []),
        (stream_claim(0, "you", before=True), OTHER_ENTRY, Held(b"you", 1, at_ms(2)), []),
    ],
)
def test_a_claim_from_several_slots_is_looked_at_in_each(
    second: Step, entry: bytes, held: Held | None, found: list[str]
) -> None:
    steps = StreamSteps({b"topic": LEASE_S * 1000})
    steps.follow(stream_step("stream_claim", 0, "me", at_s=1.0), STORE, b"g", pending())
    assert [each.split(":")[0] for each in steps.follow(second, STORE, b"g", with_(pending(), entry, held))] == found


@pytest.mark.parametrize(("epoch", "found"), [(4, ["fenced"]), (5, [])])
def test_an_older_owner_changes_nothing_in_a_claim_from_several_slots(epoch: int, found: list[str]) -> None:
    steps = StreamSteps({b"topic": LEASE_S * 1000})
    steps.follow(step("stream_stats"), STORE, b"g", pending(5))
    second = stream_claim(epoch, "me", 1, "1-0", before=True)
    assert [each.split(":")[0] for each in steps.follow(second, STORE, b"g", GroupState(5))] == found


# --- the world


def test_tasks_that_wait_for_each_other_are_hung() -> None:
    world = World(1)
    process = world.process("a")
    world.spawn(process, lambda: world.wait(world.waiter()), "waits for ever")
    with pytest.raises(HungError, match="every task waits"):
        world.run()


def test_a_task_that_ends_with_an_error_is_a_crash() -> None:
    world = World(1)
    world.spawn(world.process("a"), lambda: 1 // 0, "divides")
    world.run(1.0)
    assert [failure.split(":")[0] for failure in world.failures] == ["crash"]


def test_what_is_refused_of_a_joined_send_was_not_carried_out() -> None:
    topic = Topic("t", TopicType.FIXED_TIME, slots=4)
    parts = [
        Batch.of([EncodedMessage(slot, b"%s%d" % (name, slot), 5, b"body") for name in (b"c", b"d")])
        for slot in range(3)
    ]
    call = QueueSends(topic).joined(parts)
    arguments = [each if isinstance(each, bytes) else str(each).encode() for each in (*call.keys, *call.args)]
    command = [b"EVALSHA", b"sha", b"%d" % len(call.keys), *arguments]
    names = [f"{name}{slot}" for slot in range(3) for name in "cd"]
    sents = [Sent(number, "t", name, 5, 0, 5, 0.0) for number, name in enumerate(names)]
    Sending(sents).executed(command, "send", [5, [2, b""], b"RMQ_PAST 6 5", [1, b"41"]], World(1))
    assert [sent.content for sent in sents if sent.executed_ms] == ["c0", "d0", "d2"]


def test_the_ids_that_a_stream_answers_refuse_nothing() -> None:
    sent = Sent(0, "t", "c0", 5, 0, 5, 0.0)
    Sending([sent]).executed([b"EVALSHA", b"sha", b"0", b"c0"], "stream_send", [b"1-2", b"2-3"], World(1))
    assert sent.executed_ms
