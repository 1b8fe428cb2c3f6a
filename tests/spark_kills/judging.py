"""What the accounts of killed queries must show. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tests.spark_kills.actors import Handled
from tests.spark_kills.lives import Kill
from tests.spark_kills.words import Word

SLACK_S = 0.5


@dataclass
class Verdict:
    """What a kind has shown.

    Attributes:
        rows: How many rows were judged.
        lost: Rows that are nowhere.
        twice: Rows that are somewhere once too often.
        changed: Batches that came back with other rows.
        accounts: Other accounts that are wrong.
        excused: Rows that both the query and the consumer beside it had, after the end of a lease.
    """

    rows: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    accounts: list[str] = field(default_factory=list)
    excused: int = 0

    @property
    def good(self) -> bool:
        """Whether all promises were kept."""
        return not (self.lost or self.twice or self.changed or self.accounts)


@dataclass(frozen=True)
class Beside:
    """What a plain consumer had beside the query, and when the query was killed.

    Attributes:
        deliveries: Content -> its deliveries, oldest first.
        kills: All kills.
        lease_s: The lease.
    """

    deliveries: Mapping[str, list[Handled]]
    kills: Collection[Kill]
    lease_s: float

    def deeds(self, content: str) -> list[str]:
        """Return what it did with a content."""
        return [each.deed for each in self.deliveries.get(content, ())]

    def after_the_lease(self, content: str, runs: Iterable[Word]) -> bool:
        """Return whether the consumer had each delivery that it acked after the end of a lease of a killed run.

        The driver renews every third of a lease: a killed one leaves at least two thirds.
        """
        killed_s = {kill.life: kill.at_s for kill in self.kills}
        ended_s = [killed_s[run.life] + self.lease_s * 2 / 3 - SLACK_S for run in runs if run.life in killed_s]
        acks = [each.at_s for each in self.deliveries.get(content, ()) if each.deed == "ack"]
        return bool(ended_s) and all(at_s >= min(ended_s) for at_s in acks)


def judge_files(
    sent: Collection[str], files: Mapping[int, Collection[str]], runs: list[Word], beside: Beside
) -> Verdict:
    """Judge files by batch: each row once there, or with the consumer, and with both only after the end of a lease.

    Args:
        sent: All contents that have to be there.
        files: Batch -> its rows at the end.
        runs: When batches ran or were written.
        beside: What the consumer had.
    """
    verdict = Verdict(rows=len(sent))
    found = Counter(content for rows in files.values() for content in rows)
    batch_of = {content: number for number, rows in files.items() for content in rows}
    of_batch: dict[int, list[Word]] = defaultdict(list)
    for run in runs:
        of_batch[run.number].append(run)
    for content in sent:
        deeds, times = beside.deeds(content), found[content]
        if not times and "ack" not in deeds:
            verdict.lost.append(content)
        # what was committed and is nacked by somebody who got it later is a message like any other
        if times > 1 + deeds.count("nack"):
            verdict.twice.append(f"{content}: {times} times in files")
        if times and "ack" in deeds and "nack" not in deeds:
            if beside.after_the_lease(content, of_batch[batch_of[content]]):
                verdict.excused += 1
            else:
                verdict.twice.append(f"{content}: in batch {batch_of[content]} and with the consumer")
    verdict.accounts += [f"{content}: nobody has sent it" for content in found.keys() - set(sent)]
    return verdict


def changed(number: int, before: Collection[str], after: Collection[str], beside: Beside) -> list[str]:
    """Return how a batch that came back differs from what it was, beyond what the consumer had taken of it."""
    first, then = Counter(before), Counter(after)
    gone = {content for content in first - then if not beside.deeds(content)}
    found = [f"batch {number} lost {len(gone)} rows, such as {min(gone)}"] if gone else []
    if more := then - first:
        found.append(f"batch {number} has {more.total()} rows more, such as {min(more)}")
    if not found and [content for content in before if content in then] != list(after):
        found.append(f"batch {number} has its rows in another order")
    return found


def changed_runs(runs: Iterable[Word], beside: Beside) -> list[str]:
    """Return how batches that ran several times differ from their first run."""
    first: dict[int, Word] = {}
    return [
        text
        for run in runs
        if first.setdefault(run.number, run) is not run
        for text in changed(run.number, first[run.number].rows, run.rows, beside)
    ]


def judge_target(
    name: str, sent: Collection[str], found: Mapping[str, int], runs: list[Word], beside: Beside
) -> Verdict:
    """Judge a topic that a sink fills: each row once.

    A row is there more often only where its batch came back with other rows, because the consumer had taken some: a
    sink knows a batch by its rows. What the consumer had may be there, too, if a run that was killed had sent it.
    """
    verdict = Verdict(rows=len(sent))
    of_content: dict[str, list[Word]] = defaultdict(list)
    shapes: dict[int, set[tuple[str, ...]]] = defaultdict(set)
    for run in runs:
        shapes[run.number].add(tuple(sorted(run.rows)))
        for content in run.rows:
            of_content[content].append(run)
    for content in sent:
        times, deeds = found.get(content, 0), beside.deeds(content)
        if not times and "ack" not in deeds:
            verdict.lost.append(f"{name}: {content}")
        has_changed = any(len(shapes[run.number]) > 1 for run in of_content[content])
        most = len({run.life for run in of_content[content]}) if has_changed else 1
        if times > max(1, most) + deeds.count("nack"):
            verdict.twice.append(f"{name}: {content}: {times} times")
        elif times > 1:
            verdict.excused += 1
        if times and "ack" in deeds and "nack" not in deeds:
            if beside.after_the_lease(content, of_content[content]):
                verdict.excused += 1
            else:
                verdict.twice.append(f"{name}: {content}: there and with the consumer")
    verdict.accounts += [f"{name}: {content}: nobody has sent it" for content in found.keys() - set(sent)]
    return verdict
