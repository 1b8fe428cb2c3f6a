"""Finds in a story what RMQ promises never happens. Pure, one function for each promise.

A story is one of a campaign, of a random history, or of Spark's queries and their rivals.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, TypeVar

from tests.histories.ownership import unowned
from tests.histories.story import ENDED, FOREVER_S, Run, Send, Story, Trouble

REFUSALS = frozenset({"memory full", "disk full"})
"""Faults through which sends are refused."""

RENEWED, SLACK_S = 2 / 3, 1.0
"""Part of the lease that a delivery has left at any time while its worker and its server run; and how much later than
planned a renewal may come on a busy machine."""

CLOCKS_S = 0.05
"""How far the wall clock and the monotonic clock may drift apart during a campaign."""


@dataclass(frozen=True)
class Rules:
    """What the judge has to know.

    Attributes:
        lease_s: The lease of all topics.
        session_s: The keeper's session timeout; 0.0 where slots have no owners.
        recovery_s: How long beyond it a slot may be without an owner.
        folding: Topics in which the last, or the first, of several sends stands for all of them; in all other topics
            each send is delivered by itself, or as an item.
        apart: Topics that merge nothing: a send that is repeated is there twice, and both may be handled at once.
        retried: Topics whose sender sends whole batches again where a part of one failed, as Spark repeats a task: a
            trouble of any server may have its messages sent twice.
        dead: Topic and content of all that is dead at the end.
        pause_s: A shorter pause excuses no handlings at once, even where it was longer than what a lease had left.
    """

    lease_s: float
    session_s: float = 0.0
    recovery_s: float = 5.0
    folding: Collection[str] = ()
    apart: Collection[str] = ()
    retried: Collection[str] = ()
    dead: Collection[tuple[str, str]] = ()
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: which, and how."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Begun(Protocol):
    """A handling, of which it is known when it began."""

    start_s: float


R = TypeVar("R", bound=Begun)


@dataclass
class Verdict:
    """What a story shows.

    Attributes:
        violations: What is wrong, by promise.
        duplicates: Sends that were handled again, by the cause that explains it.
        retries: Sends that were handled again since a handler had failed.
        overlaps: Handlings at once that a pause longer than what a lease had left explains, by its cause.
        accepted: Sends that were accepted.
        refused: Sends that were refused.
        unknown: Sends whose reply was lost.
        runs: Handlings.
        longest_unowned_s: The longest time that a slot was without an owner.
    """

    violations: list[Violation] = field(default_factory=list)
    duplicates: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    overlaps: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    refused: int = 0
    unknown: int = 0
    runs: int = 0
    longest_unowned_s: float = 0.0


def judge(story: Story, rules: Rules, kinds: Sequence[str] | None = None) -> Verdict:
    """Judge a story whose topics were drained at its end.

    Args:
        story: What happened.
        rules: What the checks have to know.
        kinds: The kinds of violations to look for; `None`: all of them.
    """
    states = Counter(send.state for send in story.sends)
    verdict = Verdict(accepted=states["accepted"], refused=states["refused"], unknown=states["unknown"])
    verdict.runs = len(story.runs)
    view = _View(story, rules)
    for kind in KINDS if kinds is None else kinds:
        verdict.violations += CHECKS[kind](view, verdict)
    return verdict


class _View:
    """The story, sorted as the checks need it."""

    def __init__(self, story: Story, rules: Rules) -> None:
        self.story, self.rules = story, rules
        self.runs_of: dict[tuple[str, str], list[Run]] = defaultdict(list)
        self.runs_with: dict[str, list[Run]] = defaultdict(list)
        self.runs_in: dict[tuple[str, int], list[Run]] = defaultdict(list)
        self.killed_s: dict[int, float] = {}
        self.troubles: dict[str, list[Trouble]] = defaultdict(list)
        for run in story.runs:
            self.runs_of[run.topic, run.content].append(run)
            if run.slot >= 0:
                self.runs_in[run.topic, run.slot].append(run)
            for sent_id in run.ids:
                self.runs_with[sent_id].append(run)
        for trouble in story.troubles:
            self.troubles[trouble.who].append(trouble)
            if trouble.who.startswith("pid ") and trouble.to_s == FOREVER_S:
                self.killed_s[int(trouble.who[4:])] = trouble.from_s

    def end_s(self, run: Run) -> float:
        """Return when a run ended: by itself, or with its process."""
        return min(run.end_s, self.killed_s.get(run.pid, FOREVER_S))

    def met(self, run: Run, from_s: float, to_s: float) -> Iterator[Trouble]:
        """Return the troubles of a run's process and of the servers of its slot in a time."""
        yield from self.between(f"pid {run.pid}", from_s, to_s)
        yield from self.shards_met(run, from_s, to_s)

    def shards_met(self, run: Run, from_s: float, to_s: float) -> Iterator[Trouble]:
        """Return the troubles of the servers of a run's slot in a time."""
        for who, held_s, left_s in self._shards(run):
            if held_s <= to_s and left_s >= from_s:
                yield from self.between(who, max(from_s, held_s), min(to_s, left_s))

    def of_any_server(self, from_s: float, to_s: float) -> Iterator[Trouble]:
        """Return the troubles of all servers that touch a time, and when one refused sends."""
        for who in self.troubles:
            if who.startswith("shard "):
                yield from self.between(who, from_s, to_s)
        for fault in self.story.faults:
            if fault.kind in REFUSALS and fault.from_s <= to_s and fault.to_s >= from_s:
                yield Trouble(fault.kind, "", fault.from_s, fault.to_s)

    def left(self, run: Run, from_s: float, to_s: float) -> bool:
        """Return whether a run's process gave up its slot in a time."""
        events = self.story.owners.get((run.topic, run.slot), ())
        return any(pid == run.pid and not owns and from_s <= at_s <= to_s for at_s, pid, owns in events)

    def between(self, who: str, from_s: float, to_s: float) -> Iterator[Trouble]:
        """Return somebody's troubles that touch a time."""
        return (each for each in self.troubles[who] if each.from_s <= to_s and each.to_s >= from_s)

    def _shards(self, run: Run) -> Iterator[tuple[str, float, float]]:
        """Return which shards held a run's slot, from when to when; all of them where the slot is not known."""
        moves = self.story.shards.get((run.topic, run.slot))
        if moves is None:
            yield from ((who, 0.0, FOREVER_S) for who in self.troubles if who.startswith("shard "))
            return
        ends_s = [at_s for at_s, _ in moves[1:]] + [FOREVER_S]
        for (at_s, shard), end_s in zip(moves, ends_s, strict=True):
            yield f"shard {shard}", at_s, end_s


def lost(view: _View, verdict: Verdict) -> Iterator[Violation]:
    """Every accepted send is followed by a delivery that is claimed after it and handled to its end, or is dead."""
    del verdict
    for send in view.story.sends:
        if send.state != "accepted" or (send.topic, send.content) in view.rules.dead:
            continue
        if send.topic in view.rules.folding:
            runs = view.runs_of.get((send.topic, send.content), ())
        else:
            runs = view.runs_with.get(send.sent_id, ())
        since_s = send.begun_s - CLOCKS_S
        if not any(run.outcome in ENDED and view.story.claimed_s(run) >= since_s for run in runs):
            yield Violation("lost", f"{_sent(send)}; handled: {[_run(run) for run in runs][:3]}")


def unfinished(view: _View, verdict: Verdict) -> Iterator[Violation]:
    """The last handling of each content came to its end, or the content is dead, also where its send was unknown."""
    del verdict
    for key, runs in view.runs_of.items():
        if key not in view.rules.dead and runs[-1].outcome not in ENDED:
            yield Violation("unfinished", _run(runs[-1]))


def unexpected(view: _View, verdict: Verdict) -> Iterator[Violation]:
    """Nothing is delivered that was not sent before, to this topic and with this content, or that was refused."""
    del verdict
    sends = {send.sent_id: send for send in view.story.sends}
    for run in view.story.runs:
        if not run.ids:
            yield Violation("unexpected", f"{_run(run)} carries no send")
        for sent_id in run.ids:
            send = sends.get(sent_id)
            if send is None:
                yield Violation("unexpected", f"{_run(run)} carries {sent_id}, which nobody has sent")
            elif (send.topic, send.content) != (run.topic, run.content):
                yield Violation("unexpected", f"{_run(run)} carries {_sent(send)}")
            elif send.begun_s > run.start_s:
                yield Violation("unexpected", f"{_run(run)} carries {_sent(send)} before it was sent")
            elif send.state == "refused":
                yield Violation("unexpected", f"{_run(run)} carries {_sent(send)}, which was refused")


def duplicated(view: _View, verdict: Verdict) -> Iterator[Violation]:
    """A send that is handled again has a cause: a failed handler, or a trouble of who had it."""
    sends = {send.sent_id: send for send in view.story.sends}
    for sent_id, runs in view.runs_with.items():
        for first, second in pairwise(runs):
            if first.outcome == "failed":
                verdict.retries += 1
                continue
            cause = _cause(view, first, second, sends.get(sent_id))
            if cause:
                verdict.duplicates[cause] += 1
            else:
                yield Violation("duplicated", f"{sent_id}: {_run(first)} and {_run(second)}")


def _cause(view: _View, first: Run, second: Run, send: Send | None) -> str | None:
    """Return why a send came again: the last trouble before it, of its worker, of the way it was sent, or of servers.

    The keeper's troubles are a cause only where the worker gave up the slot.
    """
    since_s, until_s = view.story.claimed_s(first) - CLOCKS_S, second.start_s
    own = list(view.between(f"pid {first.pid}", since_s, until_s))
    if view.story.claimed_s(second) < first.start_s:  # its handler began when its lease had ended
        own += view.between(f"pid {second.pid}", view.story.claimed_s(second), until_s)
    if own:
        return _last(own)
    if send is not None and (twice := _sent_twice(view, first, send, until_s)):
        return twice
    met = list(view.shards_met(first, since_s, until_s))
    if not met and view.left(first, since_s, until_s):
        met = list(view.between("keeper", since_s, until_s))
    return _last(met) if met else None


def _sent_twice(view: _View, first: Run, send: Send, until_s: float) -> str | None:
    """Return why a send may have been repeated: a trouble of it. Where sends merge, it ended after the first claim."""
    if send.topic not in view.rules.apart and send.ended_s <= view.story.claimed_s(first) - CLOCKS_S:
        return None
    sent_s = min(send.ended_s, until_s)
    sending = [*view.between(f"pid {send.pid}", send.begun_s, sent_s), *view.shards_met(first, send.begun_s, sent_s)]
    if send.topic in view.rules.retried:
        sending += view.of_any_server(send.begun_s, sent_s)
    return f"{_last(sending)}: sent twice" if sending else None


def _last(troubles: list[Trouble]) -> str:
    return max(troubles, key=lambda trouble: trouble.from_s).cause


def overlapping(view: _View, verdict: Verdict) -> Iterator[Violation]:
    """A content is in two handlers at once only if a pause kept the first one from renewing.

    Where nothing is merged, also if its one send was repeated.
    """
    sends = {send.sent_id: send for send in view.story.sends if send.topic in view.rules.apart}
    for runs in view.runs_of.values():
        for first, second in at_once(runs, view.end_s):
            send = sends.get(first.ids[0]) if first.ids and first.ids == second.ids else None
            if send is not None and (twice := _sent_twice(view, first, send, second.start_s)):
                verdict.overlaps[twice] += 1
                continue
            yield from _excused(view, verdict, first, second, "overlap of a content")


def serial(view: _View, verdict: Verdict) -> Iterator[Violation]:
    """Two processes handle messages of one slot at once only for the same reason."""
    for runs in view.runs_in.values():
        for first, second in at_once(runs, view.end_s):
            if first.pid != second.pid and first.content != second.content:
                yield from _excused(view, verdict, first, second, "overlap of a slot")


def _excused(view: _View, verdict: Verdict, first: Run, second: Run, kind: str) -> Iterator[Violation]:
    rules = view.rules
    since_s = view.story.claimed_s(first) if first.claimed_ms else first.start_s - rules.lease_s
    for trouble in view.met(first, since_s, second.start_s):
        if trouble.to_s - trouble.from_s < rules.pause_s:
            continue
        if min(trouble.to_s, second.start_s) - trouble.from_s >= RENEWED * rules.lease_s - SLACK_S:
            verdict.overlaps[trouble.cause] += 1
            return
    yield Violation(kind, f"{_run(first)} and {_run(second)}")


def at_once(runs: Iterable[R], end_s: Callable[[R], float]) -> Iterator[tuple[R, R]]:
    """Return pairs of runs, given in the order of their beginning, of which the second began before the first ended."""
    open_: list[R] = []
    for run in runs:
        open_ = [each for each in open_ if end_s(each) > run.start_s]
        yield from ((each, run) for each in open_)
        open_.append(run)


def early(view: _View, verdict: Verdict) -> Iterator[Violation]:
    """Nothing is claimed before it is due, by Redis' clock.

    It is due by the send whose body it carries, or by an earlier one that had merged with it. Those are the sends since
    the claim of the last handling that was acked; that claim came after the one before it had begun to run. A send
    whose reply was lost may have been stored at any later time.
    """
    del verdict
    sends: dict[tuple[str, str], list[Send]] = defaultdict(list)
    for send in view.story.sends:
        if send.due_ms and send.state != "refused":
            sends[send.topic, send.content].append(send)
    for key, runs in view.runs_of.items():
        since_s, before_s = 0.0, 0.0
        for run in runs:
            merged = (send for send in sends[key] if send.begun_s <= run.start_s)
            due = [send.due_ms for send in merged if send.state == "unknown" or send.ended_s >= since_s]
            due_ms = min([run.due_ms, *due])
            if run.claimed_ms < due_ms:
                yield Violation("early", f"{_run(run)}: claimed {due_ms - run.claimed_ms} ms before it was due")
            if run.outcome == "acked":
                since_s = before_s
            before_s = run.start_s


def ownerless(view: _View, verdict: Verdict) -> Iterator[Violation]:
    """A slot has an owner again within the session timeout and `recovery_s`."""
    limit_s = view.rules.session_s + view.rules.recovery_s
    for (topic, slot), gap in unowned(view.story).items():
        verdict.longest_unowned_s = max(verdict.longest_unowned_s, gap.length_s)
        if gap.length_s > limit_s:
            said = f"{topic}/{slot} from {gap.from_s:.3f} to {gap.to_s:.3f}, {gap.length_s:.2f} s"
            yield Violation("without an owner", said)


CHECKS: dict[str, Callable[[_View, Verdict], Iterator[Violation]]] = {
    "lost": lost, "unfinished": unfinished, "unexpected": unexpected, "duplicated": duplicated,
    "overlap of a content": overlapping, "overlap of a slot": serial, "early": early, "without an owner": ownerless,
}  # fmt: skip
"""The kinds of violations, and what finds them."""

KINDS = tuple(CHECKS)
UNOWNED = ("lost", "unfinished", "unexpected", "overlap of a content", "early")
"""What is judged without ZooKeeper, where workers share slots, and where the story does not tell of all faults."""


def counted(violations: Collection[Violation]) -> Mapping[str, int]:
    """Return how many violations there are of each kind."""
    return Counter(violation.kind for violation in violations)


def summary(verdict: Verdict, kinds: Sequence[str]) -> str:
    """Return how many violations there are of each of these kinds, in words."""
    found = Counter(violation.kind for violation in verdict.violations)
    return ", ".join(f"{kind} {found[kind]}" for kind in kinds)


def _sent(send: Send) -> str:
    ended = "no end" if send.ended_s == FOREVER_S else f"{send.ended_s:.3f}"
    return f"{send.topic}: {send.content} ({send.sent_id}, {send.state}) sent by {send.pid} {send.begun_s:.3f}..{ended}"


def _run(run: Run) -> str:
    ended = "no end" if run.end_s == FOREVER_S else f"{run.end_s:.3f}"
    name = f"{run.topic}/{run.slot}: {run.content} in {run.pid} ({run.run})"
    return f"{name} {run.start_s:.3f}..{ended} {run.outcome or 'unfinished'}"
