"""What happened in a campaign or a history: events in one file, written by all processes, read for the judge.

Each event is one line, written by one call, so that a killed process leaves no half of one. Values are set apart by
tabs, names in a list by commas. Times are seconds of the monotonic clock that all processes of a machine share.

    clock    TIME EPOCH_MS                                the two clocks at one moment
    try      TIME PID BATCH TOPIC CONTENT ID [CONTENT ID ...]   a send begins
    due      BATCH MS [MS ...]                            when its sends make their contents due; see `Send`
    sent     TIME BATCH REFUSED_IDS UNKNOWN_IDS           it has ended: all other ids are accepted
    begin    TIME PID RUN TOPIC SLOT CONTENT IDS CLAIMED_MS DUE_MS   a handler begins; slot -1, claim 0: unknown
    end      TIME OUTCOME RUN [RUN ...]                   it ends: acked, failed, or late (its lease was lost)
    trouble  CAUSE WHO FROM TO                            a fault as it was felt; see `Trouble`
    fault    KIND FROM TO TEXT                            a fault as it was planned
    owns     TIME PID TOPIC SLOT                          a worker may claim from this slot from now on
    leaves   TIME PID TOPIC SLOT                          no longer
    shard    TIME TOPIC SLOT SHARD                        which masters and replicas hold the slot from now on
    watch    FROM TO                                      between these times slots have to be owned
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

FOREVER_S = float("inf")
ENDED = frozenset({"acked", "late"})
"""Outcomes of handlers that came to their end."""


@dataclass(slots=True)
class Send:
    """One send of one content; `state` is `accepted`, `refused`, or `unknown` where the reply was lost.

    `due_ms` is when it makes its content due, if an earlier send of that content may do so before it; else 0.
    """

    topic: str
    content: str
    sent_id: str
    pid: int
    begun_s: float
    ended_s: float = FOREVER_S
    state: str = "unknown"
    due_ms: int = 0


@dataclass(slots=True)
class Run:
    """One handling of one delivery; `end_s` is infinite and `outcome` empty where nobody wrote down its end."""

    run: str
    pid: int
    topic: str
    slot: int
    content: str
    ids: tuple[str, ...]
    claimed_ms: int
    due_ms: int
    start_s: float
    end_s: float = FOREVER_S
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A time in which something did not work.

    Attributes:
        cause: Its name, for example `worker killed`.
        who: `pid 123`, `shard 0` or `keeper`.
        from_s: Its beginning.
        to_s: Its end; infinite for a process that was killed.
    """

    cause: str
    who: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the plan that was carried out."""

    kind: str
    from_s: float
    to_s: float
    text: str


@dataclass
class Story:
    """All events.

    Attributes:
        sends: All sends.
        runs: All handlings, in the order of their beginning.
        troubles: All troubles.
        faults: All faults.
        owners: (topic, slot) -> (time, pid, whether it owns it from then on), in order.
        shards: (topic, slot) -> (time, shard), in order.
        watch_s: Between which times slots have to be owned.
        epoch_s: What to add to a time of the monotonic clock to get seconds since 1970.
    """

    sends: list[Send] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    owners: dict[tuple[str, int], list[tuple[float, int, bool]]] = field(default_factory=lambda: defaultdict(list))
    shards: dict[tuple[str, int], list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    watch_s: tuple[float, float] = (0.0, 0.0)
    epoch_s: float = 0.0

    def claimed_s(self, run: Run) -> float:
        """Return the time of a run's claim on the monotonic clock; of its beginning, where the claim is not known."""
        if not run.claimed_ms:
            return run.start_s
        return run.claimed_ms / 1000 - self.epoch_s


def read(path: Path) -> Story:
    """Read a file of events."""
    with path.open(encoding="utf-8") as lines:
        return tell(lines)


def tell(lines: Iterable[str]) -> Story:
    """Make a story of lines. A kind of line that nobody knows is an error."""
    teller = _Teller()
    tells = {
        "clock": teller.clock, "try": teller.tries, "due": teller.due, "sent": teller.sent, "begin": teller.begin,
        "end": teller.end, "trouble": teller.trouble, "fault": teller.fault, "owns": teller.owns,
        "leaves": teller.leaves, "shard": teller.shard, "watch": teller.watch,
    }  # fmt: skip
    for line in lines:
        kind, *values = line.rstrip("\n").split("\t")
        tells[kind](*values)
    return teller.whole()


class _Teller:
    def __init__(self) -> None:
        self._story = Story()
        self._runs: dict[str, Run] = {}
        self._batches: dict[str, list[Send]] = {}

    def whole(self) -> Story:
        story = self._story
        story.runs = sorted(self._runs.values(), key=lambda run: run.start_s)
        for events in (*story.owners.values(), *story.shards.values()):
            events.sort()
        return story

    def clock(self, at_s: str, epoch_ms: str) -> None:
        self._story.epoch_s = int(epoch_ms) / 1000 - float(at_s)

    def tries(self, at_s: str, pid: str, batch: str, topic: str, *pairs: str) -> None:
        begun_s, process = float(at_s), int(pid)
        sends = [
            Send(topic, content, sent_id, process, begun_s)
            for content, sent_id in zip(pairs[::2], pairs[1::2], strict=True)
        ]
        self._batches[batch] = sends
        self._story.sends += sends

    def due(self, batch: str, *due_ms: str) -> None:
        for send, each_ms in zip(self._batches[batch], due_ms, strict=True):
            send.due_ms = int(each_ms)

    def sent(self, at_s: str, batch: str, refused: str, unknown: str) -> None:
        states = dict.fromkeys(_names(unknown), "unknown") | dict.fromkeys(_names(refused), "refused")
        ended_s = float(at_s)
        for send in self._batches.pop(batch):
            send.state, send.ended_s = states.get(send.sent_id, "accepted"), ended_s

    def begin(self, at_s: str, pid: str, run: str, topic: str, slot: str, content: str, ids: str, *ms: str) -> None:
        if run in self._runs:
            raise ValueError(f"two runs are called {run}: were there two processes of one pid?")
        claimed_ms, due_ms = map(int, ms)
        begun = Run(run, int(pid), topic, int(slot), content, _names(ids), claimed_ms, due_ms, float(at_s))
        self._runs[run] = begun

    def end(self, at_s: str, outcome: str, *runs: str) -> None:
        for run in runs:
            self._runs[run].end_s, self._runs[run].outcome = float(at_s), outcome

    def trouble(self, cause: str, who: str, from_s: str, to_s: str) -> None:
        self._story.troubles.append(Trouble(cause, who, float(from_s), float(to_s)))

    def fault(self, kind: str, from_s: str, to_s: str, text: str) -> None:
        self._story.faults.append(Fault(kind, float(from_s), float(to_s), text))

    def owns(self, at_s: str, pid: str, topic: str, slot: str) -> None:
        self._story.owners[topic, int(slot)].append((float(at_s), int(pid), True))

    def leaves(self, at_s: str, pid: str, topic: str, slot: str) -> None:
        self._story.owners[topic, int(slot)].append((float(at_s), int(pid), False))

    def shard(self, at_s: str, topic: str, slot: str, shard: str) -> None:
        self._story.shards[topic, int(slot)].append((float(at_s), int(shard)))

    def watch(self, from_s: str, to_s: str) -> None:
        self._story.watch_s = float(from_s), float(to_s)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()
