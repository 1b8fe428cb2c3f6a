"""Finds in a history what RMQ promises never happens. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from tests.histories.journal import FOREVER_S, History, Run, Send

RENEWED = 2 / 3
"""Part of the lease that a delivery has left at any time while its worker and its server run."""

SLACK_S = 1.0
"""How much later than planned a renewal may come on a busy machine before an outage excuses nothing."""


@dataclass
class Verdict:
    """What a history shows.

    Attributes:
        lost: Accepted sends without a delivery that starts after them, and without a dead entry.
        unfinished: Contents whose last handling failed or never ended, and which were neither delivered again nor died.
        overlaps: Pairs of handlings of one content that ran at once without an excuse.
        early: Handlings that began before the message was due: by the send whose body they got, or by an earlier one
            that had merged with it.
        excused: Number of overlaps caused by an outage of the worker or the server, or by two entries of a stream.
        sends: How many sends were accepted.
        runs: How many handlings there were.
    """

    lost: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    excused: int = 0
    sends: int = 0
    runs: int = 0

    @property
    def good(self) -> bool:
        """Whether all promises were kept."""
        return not (self.lost or self.unfinished or self.overlaps or self.early)


def judge(
    history: History, lease_s: float, dead: Collection[tuple[str, str]], streams: Collection[str] = ()
) -> Verdict:
    """Judge a history whose topics were drained at its end.

    Args:
        history: What happened.
        lease_s: The lease of all topics.
        dead: Topic and content of all that is dead at the end.
        streams: Names of stream topics, where a send that is repeated after a lost reply adds a second entry.
    """
    verdict = Verdict(sends=sum(send.state == "accepted" for send in history.sends), runs=len(history.runs))
    runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in history.runs:
        runs[run.topic, run.content].append(run)
    for key, begun_s in _last_accepted(history).items():
        if key not in dead and not any(run.start_s >= begun_s for run in runs.get(key, ())):
            verdict.lost.append(f"{key[0]}: {key[1]}, sent at {begun_s:.3f}")
    sends: dict[tuple[str, str], list[Send]] = defaultdict(list)
    entered_twice = {(send.topic, send.content) for send in history.sends if _met_outage(send, history)}
    for send in history.sends:
        if send.due_ms and send.state != "refused":
            sends[send.topic, send.content].append(send)
    for key, of_content in runs.items():
        verdict.early += _early(of_content, sends[key])
        if key not in dead and of_content[-1].outcome not in ("acked", "late"):
            verdict.unfinished.append(f"{_named(of_content[-1])}: {of_content[-1].outcome or 'no end'}")
        for first, second in _at_once(of_content, history):
            twice = key[0] in streams and key in entered_twice
            if twice or _is_excused(history, first, second, lease_s):
                verdict.excused += 1
            else:
                verdict.overlaps.append(f"{_named(first)} and {_named(second)}")
    return verdict


def _last_accepted(history: History) -> dict[tuple[str, str], float]:
    """Return when the last accepted send of each topic and content began."""
    last: dict[tuple[str, str], float] = {}
    for send in history.sends:
        if send.state == "accepted":
            last[send.topic, send.content] = max(send.begun_s, last.get((send.topic, send.content), 0.0))
    return last


def _early(runs: list[Run], sends: list[Send]) -> Iterator[str]:
    """Yield the handlings that began before any send that may have merged into their message was due.

    Those are the sends since the claim of the last handling that was acked; that claim came after the one before it
    had begun to run. A send whose reply was lost may have been stored at any later time.
    """
    since_s, before_s = 0.0, 0.0
    for run in runs:
        merged = (send for send in sends if send.begun_s <= run.start_s)
        due = [send.due_ms for send in merged if send.state == "unknown" or send.ended_s >= since_s]
        due_ms = min([run.due_ms, *due])
        if run.start_wall_ms < due_ms:
            yield f"{_named(run)} {due_ms - run.start_wall_ms} ms before its due time"
        if run.outcome == "acked":
            since_s = before_s
        before_s = run.start_s


def _at_once(runs: list[Run], history: History) -> list[tuple[Run, Run]]:
    """Return pairs of handlings of a content of which the second began before the first had ended."""
    killed = {each.who: each.from_s for each in history.outages if each.to_s == FOREVER_S}
    pairs: list[tuple[Run, Run]] = []
    open_: list[Run] = []
    for run in runs:
        open_ = [each for each in open_ if min(each.end_s, killed.get(f"pid {each.pid}", FOREVER_S)) > run.start_s]
        pairs += [(each, run) for each in open_]
        open_.append(run)
    return pairs


def _met_outage(send: Send, history: History) -> bool:
    """Return whether a server did not run during a send, so that its reply may have been lost."""
    outages = (each for each in history.outages if each.who.startswith("node "))
    return any(each.from_s < send.ended_s and each.to_s > send.begun_s for each in outages)


def _is_excused(history: History, first: Run, second: Run, lease_s: float) -> bool:
    """Return whether the first handling's lease could not be renewed: its worker or its server did not run."""
    names = {f"pid {first.pid}", *_holders_of(history, first, second, lease_s)}
    for outage in history.outages:
        if outage.who in names and outage.from_s < second.start_s and outage.to_s > first.start_s - lease_s:
            length_s = min(outage.to_s, second.start_s) - outage.from_s
            if length_s >= RENEWED * lease_s - SLACK_S:
                return True
    return False


def _holders_of(history: History, first: Run, second: Run, lease_s: float) -> set[str]:
    """Return the nodes that held the slot from the first handling's claim to the second's."""
    found: set[str] = set()
    moves = history.holders.get((first.topic, first.slot), [])
    for index, (from_s, node) in enumerate(moves):
        to_s = moves[index + 1][0] if index + 1 < len(moves) else FOREVER_S
        if from_s < second.start_s and to_s > first.start_s - lease_s:
            found.add(f"node {node}")
    return found


def _named(run: Run) -> str:
    end = "no end" if run.end_s == FOREVER_S else f"{run.end_s:.3f}"
    return f"{run.topic}/{run.slot}: {run.content} in {run.pid} from {run.start_s:.3f} to {end}"
