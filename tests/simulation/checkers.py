"""Finds in a history what RMQ promises never happens. Pure, one function for each promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise

from tests.histories.judge import Violation, at_once
from tests.simulation.history import FOREVER_S, PATIENCE_S, History, Run, Sent, clock_s, ms_of
from tests.simulation.plan import SUM_WINDOW_MS
from tests.simulation.schedule_checkers import schedule_missing, schedule_repeated, schedule_wrong
from tests.simulation.steps import Hold
from tests.simulation.world import START_S
from tests.support.core import id_key

RENEWED = 1 / 3
"""An outage of less than this part of the lease loses no lease."""

ENDED = ("acked", "unknown", "late")
"""Outcomes of handlings that came to their end. Of an `unknown` one the reply to its ack was lost; the ack of a `late`
one counts where nobody else has claimed the message since."""

NOT_RENEWED_MS = 100
"""So little later than its time is the stamp of a claim at most; a renewal comes later."""

FENCING = ("zk_expire", "zk_stall", "zk_down")
"""Troubles through which a slot passes to another owner while a handler runs."""

DRAINED_S, HANDED_OVER_S = 30.0, 60.0
"""How long a handler may take at least once its process stops or its slot is wanted; and in which time after a process
has stopped or has lost its session its slots are given to others."""


def check(history: History) -> list[Violation]:
    """Return all that is wrong."""
    return [violation for checker in CHECKERS for violation in checker(history)]


def lost(history: History) -> Iterator[Violation]:
    """Every accepted send is followed by a delivery that is claimed after it and handled to its end, or is dead."""
    for sent, runs in _unhandled(history):
        if history.replicated or not _forgotten(history, sent):
            yield Violation("lost", f"{_sent(sent)}; handled: {[_run(run) for run in runs]}")


def forgotten_sends(history: History) -> int:
    """Return how many accepted sends a server has forgotten: those are no broken promise without replicas."""
    return sum(_forgotten(history, sent) for sent, _ in _unhandled(history))


def _unhandled(history: History) -> Iterator[tuple[Sent, list[Run]]]:
    """Find accepted sends without a handling, and the handlings that there are of their contents."""
    for key, (sends, runs) in history.of_content().items():
        if key in history.dead:
            continue
        folds = history.topics[key[0]].kind == "sum"
        for sent in sends:
            if sent.state != "accepted" or not sent.executed_ms:
                continue
            since_ms = sent.executed_ms[0 if folds else -1]  # repeats of a folded send count once
            if not any(
                run.outcome in ENDED and run.claimed_ms >= since_ms and (not folds or sent.number in run.carried)
                for run in runs
            ):
                yield sent, runs


def unexpected(history: History) -> Iterator[Violation]:
    """Nothing is delivered that nobody has sent."""
    for (topic, content), (sends, runs) in history.of_content().items():
        sent_before = {sent.number: sent for sent in sends if sent.executed_ms}
        for run in runs:
            if run.wrong:
                yield Violation("unexpected", f"{_run(run)}: {run.wrong}")
            for number in run.carried:
                sent = sent_before.get(number)
                if sent is None or sent.executed_ms[0] > run.claimed_ms:
                    yield Violation("unexpected", f"{_run(run)} of {topic}/{content} carries send {number}")


def duplicated(history: History) -> Iterator[Violation]:
    """What comes again has a cause: a new send, a failure, or a trouble of who had it."""
    for sends, runs in history.of_content().values():
        for first, second in chain.from_iterable(pairwise(each) for each in _entries(runs)):
            if first.outcome in ("failed", "late") or _sent_between(sends, first, second):
                continue
            if not _met(history, first, second.start_s):
                yield Violation("duplicated", f"{_run(first)} and {_run(second)}")


def counted_twice(history: History) -> Iterator[Violation]:
    """No send is in two folded deliveries unless the first one did not end well, or had a trouble."""
    for sends, runs in history.of_content().values():
        if not sends or history.topics[sends[0].topic].kind != "sum":
            continue
        for i, first in enumerate(runs):
            for second in runs[i + 1 :]:
                if first.outcome != "acked" or not set(first.carried) & set(second.carried):
                    continue
                if not _met(history, first, second.start_s):
                    yield Violation("counted twice", f"{_run(first)} and {_run(second)}")


def overlap(history: History) -> Iterator[Violation]:
    """While leases hold, a content is in one handler."""
    for entry in chain.from_iterable(_entries(runs) for _, runs in history.of_content().values()):
        for first, second in at_once(entry, _end_s):
            if not _excused(history, first, second):
                yield Violation("overlap", f"{_run(first)} and {_run(second)}")


def early(history: History) -> Iterator[Violation]:
    """Nothing is delivered before it is due."""
    for (topic, _), (sends, runs) in history.of_content().items():
        kind = history.topics[topic].kind
        if kind == "priority":
            continue
        for run in runs:
            if run.attempt != 1:
                continue
            due = [_due_ms(sent, kind) for sent in sends if sent.executed_ms and sent.executed_ms[0] <= run.claimed_ms]
            if due and run.claimed_ms < min(due):
                yield Violation("early", f"{_run(run)}, {min(due) - run.claimed_ms} ms before")
            if run.score > run.claimed_ms:
                yield Violation("early", f"{_run(run)}, {run.score - run.claimed_ms} ms before its score")


def order(history: History) -> Iterator[Violation]:
    """Within a claim the larger priority goes first, and the earlier due time."""
    claims: dict[tuple[str, str, int, int], list[Run]] = {}
    for run in history.runs:
        # a later stamp is that of a renewal, of several claims perhaps; entries have none
        if not run.entry and run.stamp < run.claimed_ms + NOT_RENEWED_MS:
            claims.setdefault((run.process, run.topic, run.slot, run.stamp), []).append(run)
    for claim in claims.values():
        up = history.topics[claim[0].topic].kind != "priority"
        for first, second in pairwise(claim):
            if (first.score > second.score) if up else (first.score < second.score):
                yield Violation("order", f"{_run(first)} and {_run(second)}")


def fifo(history: History) -> Iterator[Violation]:
    """With ZooKeeper, the entries of a slot are handled for the first time in the order of their sending."""
    last: dict[tuple[str, int], Run] = {}
    for run in history.runs:
        if not run.entry or not run.epoch or run.attempt > 1:
            continue
        before = last.get((run.topic, run.slot))
        if before and id_key(run.entry) < id_key(before.entry) and not history.forgotten(0.0, run.start_s):
            yield Violation("fifo", f"{_run(before)} and {_run(run)}")
        last[run.topic, run.slot] = run


def starved(history: History) -> Iterator[Violation]:
    """What is due does not wait long where nothing is wrong and those who handle its topic are idle."""
    for (topic, _), (sends, runs) in history.of_content().items():
        kind = history.topics[topic].kind
        for sent in sends:
            if sent.state != "accepted" or not sent.executed_ms:
                continue
            claimed = [run.claimed_ms for run in runs if run.claimed_ms >= sent.executed_ms[-1]]
            if not claimed:
                continue
            claimed_ms = min(claimed)
            [first, *_] = (run for run in runs if run.claimed_ms == claimed_ms)
            before = [each for each in sends if each.executed_ms and each.executed_ms[-1] <= claimed_ms]
            # a later send of the same content may have put it off
            merged = before if kind == "fixed" else _merged_with(sent, sends, runs) if kind == "range" else [sent]
            due_ms = max(_due_ms(each, kind, latest=True) for each in merged)
            due_ms = max(due_ms, _retried_ms(history, sent, runs))
            from_s, to_s = clock_s(sent.executed_ms[0]), clock_s(claimed_ms)
            if (late_s := (claimed_ms - due_ms) / 1000) > history.patience_s:
                met = {each.kind for each in history.troubles if each.from_s < to_s and each.to_s > from_s - PATIENCE_S}
                patience_s = history.patience_s + (history.longest_wait_s(topic) if "lose_hints" in met else 0.0)
                busy_s = _busy_s(history, first, clock_s(due_ms), to_s)
                if late_s - busy_s > patience_s and not met - {"lose_hints"}:
                    yield Violation("starved", f"{_sent(sent)} was claimed {claimed_ms - due_ms} ms late")


def held_up(history: History) -> Iterator[Violation]:
    """What is claimed does not wait long for its handler where nothing is wrong: it goes back, and others get it."""
    for run in history.runs:
        waited_s = run.start_s - clock_s(run.claimed_ms)
        if waited_s > history.patience_s and not _met(history, run, run.start_s):
            yield Violation("held up", f"{_run(run)} was begun {waited_s:.3f} s after its claim")
    before_s = HANDED_OVER_S if any(run.epoch for run in history.runs) else 0.0
    for (topic, content), holds in history.holds.items():
        lease_s = history.topics[topic].lease_s
        runs = [run for run in history.runs if (run.topic, run.content) == (topic, content)]
        for hold in holds:
            idle_s = _idle_s(runs, hold)
            if idle_s > (min(RENEWED * lease_s, history.patience_s) if hold.ended else history.patience_s):
                if not history.met_meanwhile(hold, before_s):
                    at_s = clock_s(hold.from_ms) - START_S
                    yield Violation("held up", f"{topic}/{content}, claimed {at_s:.3f}, stood still for {idle_s:.3f} s")


def _idle_s(runs: list[Run], hold: Hold) -> float:
    """Return for how long a content was claimed while no handler of it was at work."""
    from_s, to_s = clock_s(hold.from_ms), clock_s(hold.end_ms)
    idle_s = 0.0
    for run in runs:
        if hold.from_ms <= run.claimed_ms <= hold.to_ms and from_s < run.end_s and run.start_s < to_s:
            idle_s += max(0.0, run.start_s - from_s)
            from_s = run.end_s
    return idle_s + max(0.0, to_s - from_s)


def _merged_with(sent: Sent, sends: list[Sent], runs: list[Run]) -> list[Sent]:
    """Return the sends of a RANGE_MERGE content of which one rules when a send is due: the first since the last claim.

    Source: docs/internals/merging.md.
    """
    at_ms = sent.executed_ms[-1]
    since_ms = max((run.claimed_ms for run in runs if run.claimed_ms < at_ms), default=0)
    return [each for each in sends if each.executed_ms and since_ms <= each.executed_ms[-1] <= at_ms]


def _retried_ms(history: History, sent: Sent, runs: list[Run]) -> int:
    """Return until when a send may wait that met its content waiting for a retry; 0 where it met none."""
    plan, at_ms = history.topics[sent.topic], sent.executed_ms[-1]
    failed = [run for run in runs if run.claimed_ms < at_ms and run.outcome != "acked"]
    ended_s = (run.end_s if run.end_s < FOREVER_S else clock_s(run.claimed_ms) + plan.lease_s for run in failed[-1:])
    return max((ms_of(each_s) + plan.longest_retry_ms for each_s in ended_s), default=0)


def _busy_s(history: History, run: Run, from_s: float, to_s: float) -> float:
    """Return for how long within a time a message could not be claimed: its process was busy, or there was a claim.

    Messages of its topic, in any group, keep its process busy. A claim of its content holds it up for as long as the
    lease lasts, and with ZooKeeper so does a claim of anything in its slot.
    """
    name = run.topic.partition("@")[0]
    busy = [
        (each.start_s, each.end_s)
        for each in history.runs
        if each.process == run.process and each.topic.partition("@")[0] == name
    ]
    if run.entry:
        busy += [
            (each.start_s, _free_s(history, each))
            for each in history.runs
            if run.epoch and each.epoch and (each.topic, each.slot) == (run.topic, run.slot)
        ]
    holds = history.held_in.get((name, run.slot)) if run.epoch else history.holds.get((name, run.content))
    busy += [(clock_s(each.from_ms), clock_s(each.end_ms)) for each in holds or ()]
    busy_s = 0.0
    for start_s, end_s in sorted(busy):
        if start_s < to_s:
            since_s, from_s = from_s, max(from_s, min(end_s, to_s))
            busy_s += from_s - max(since_s, min(start_s, from_s))
    return busy_s


def _free_s(history: History, run: Run) -> float:
    """Return when the next owner of its slot may claim at the latest: a stop may have left the run to its lease."""
    ended = [at_s for at_s, who in history.moves if who == run.process and run.start_s <= at_s <= run.end_s - DRAINED_S]
    left_s = min(ended) + DRAINED_S + history.topics[run.topic].lease_s if ended else run.start_s
    return left_s if run.end_s == FOREVER_S else max(run.end_s, left_s)


def stolen(history: History) -> Iterator[Violation]:
    """A lease is lost only through a trouble of who had it."""
    for run in history.runs:
        if run.lost_s < FOREVER_S and not _met(history, run, run.lost_s):
            yield Violation("stolen", f"{_run(run)} at {run.lost_s - START_S:.3f}")


def late_begin(history: History) -> Iterator[Violation]:
    """No handling begins after its lease: somebody else may have the message."""
    for run in history.runs:
        if run.start_s > run.lease_until_s and not history.met(run.process, run.start_s - 0.01, run.start_s, "pause"):
            yield Violation("late begin", f"{_run(run)}, {run.start_s - run.lease_until_s:.3f} s after its lease")


def serial(history: History) -> Iterator[Violation]:
    """With ZooKeeper, the messages of a slot are handled one after the other."""
    slots: dict[tuple[str, int], list[Run]] = {}
    for run in history.runs:
        if run.epoch:
            slots.setdefault((run.topic, run.slot), []).append(run)
    for runs in slots.values():
        for first, second in at_once(runs, _end_s):
            batch = (first.life, first.start_s) == (second.life, second.start_s)
            if not batch and not _excused(history, first, second):
                yield Violation("serial", f"{_run(first)} and {_run(second)}")


def fenced(history: History) -> Iterator[Violation]:
    """An epoch belongs to one process, and nobody claims once a newer owner has claimed."""
    owners: dict[tuple[str, int, int], int] = {}
    for run in history.runs:
        life = owners.setdefault((run.topic, run.slot, run.epoch), run.life)
        if run.epoch and life != run.life:
            yield Violation("fenced", f"{_run(run)} has epoch {run.epoch} of life {life}")
    newest: dict[tuple[str, int], Run] = {}
    for run in sorted(history.runs, key=lambda each: (each.claimed_ms, each.stamp)):
        before = newest.setdefault((run.topic, run.slot), run)
        if run.epoch < before.epoch and not history.forgotten(clock_s(before.claimed_ms), clock_s(run.claimed_ms)):
            yield Violation("fenced", f"{_run(run)} with epoch {run.epoch} after {before.epoch}")
        if run.epoch > before.epoch:
            newest[run.topic, run.slot] = run


CHECKERS: tuple[Callable[[History], Iterator[Violation]], ...] = (
    lost, unexpected, duplicated, counted_twice, overlap, stolen, late_begin, serial, fenced, early, order, fifo,
    starved, held_up, schedule_missing, schedule_wrong, schedule_repeated,
)  # fmt: skip


def _due_ms(sent: Sent, kind: str, *, latest: bool = False) -> int:
    """Return when a send is due by itself: after the first time that it was carried out, or the last."""
    if kind == "fixed":
        return sent.fixed_ms
    return sent.executed_ms[-1 if latest else 0] + {"range": sent.what, "delayed": sent.what, "sum": SUM_WINDOW_MS}.get(
        kind, 0
    )


def _end_s(run: Run) -> float:
    return run.end_s


def _entries(runs: list[Run]) -> Iterable[list[Run]]:
    """Return the handlings of each entry of a stream apart; otherwise all together."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.entry, []).append(run)
    return found.values()


def _forgotten(history: History, sent: Sent) -> bool:
    """Return whether the server forgot the send, or that it was handled and what followed."""
    return any(history.forgotten(at_s, at_s) for at_s in sent.executed_s)


def _sent_between(sends: list[Sent], first: Run, second: Run) -> bool:
    return any(first.claimed_ms <= at_ms <= second.claimed_ms for sent in sends for at_ms in sent.executed_ms)


def _met(history: History, run: Run, to_s: float) -> bool:
    """Return whether the process of a handling met with a trouble, or lost it to another one for a known reason."""
    return bool(history.met(run.process, clock_s(run.claimed_ms) - 0.01, to_s + 0.01)) or _handed_over(
        history, run, to_s
    )


def _handed_over(history: History, run: Run, to_s: float) -> bool:
    """Return whether a handling was still under way when the drain time of its process, or of its slot, was over.

    A stop leaves such a handling to its lease. With ZooKeeper the slot gets its next owner then; the session of a
    process that was killed ends some time after it.
    """
    end_s, since_s = min(run.end_s, to_s), clock_s(run.claimed_ms) - (HANDED_OVER_S if run.epoch else 0.0)
    return any(
        since_s <= at_s <= end_s - DRAINED_S and (run.epoch or who == run.process) for at_s, who in history.moves
    )


def _excused(history: History, first: Run, second: Run) -> bool:
    """Return whether the first handling's lease could not be renewed."""
    from_s, to_s = clock_s(first.claimed_ms) - 0.01, second.start_s + 0.01
    if history.met(first.process, from_s, to_s, "cut", "lose_reply", "lose_request", "kill", "forget", "restart"):
        return True
    if _handed_over(history, first, second.start_s):
        return True
    lease_s = history.topics[first.topic].lease_s
    if second.start_s > clock_s(first.claimed_ms) + lease_s and history.met(first.process, from_s, to_s, *FENCING):
        return True  # the newer owner's epoch refuses renewals, and it waits for the end of the lease
    long = history.met(first.process, from_s, to_s, "pause", "stall", "slow")
    return sum(min(each.to_s, to_s) - max(each.from_s, from_s) for each in long) >= RENEWED * lease_s


def _sent(sent: Sent) -> str:
    at = ", ".join(f"{at_s - START_S:.3f}" for at_s in sent.executed_s)
    return f"send {sent.number} of {sent.topic}/{sent.content} ({sent.what}), {sent.state}, executed at {at}"


def _run(run: Run) -> str:
    end = "never" if run.end_s == float("inf") else f"{run.end_s - START_S:.3f}"
    return (
        f"[{run.topic}/{run.slot} {run.content} attempt {run.attempt} in {run.process}, claimed"
        f" {clock_s(run.claimed_ms) - START_S:.3f}, {run.start_s - START_S:.3f} to {end} {run.outcome}]"
    )
