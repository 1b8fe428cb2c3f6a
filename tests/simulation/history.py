"""What happened in a simulation: sends, handlings, troubles. The checkers read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.simulation.plan import GROUPS, TopicPlan
from tests.simulation.steps import Hold
from tests.simulation.world import EPOCH_MS, START_S
from tests.support.core import LONG_LOOK_S, LOOK_S

FOREVER_S = float("inf")

PATIENCE_S, SLOW_PATIENCE_S = 30.0, 5.0
"""What is due is claimed in this time where nothing is wrong, not counting the time in which handlers are busy. What is
claimed is begun in it. The second number is for plans with slow handlers: there it shows who sleeps for too long."""


@dataclass(eq=False)
class Sent:
    """One send of one message.

    Attributes:
        number: Its number in the history, from 0.
        topic: Name of its topic.
        content: Its content.
        what: Delay in ms, or priority.
        bit: Of a Sum: which bit it is.
        fixed_ms: Of FIXED_TIME: when it is due.
        begun_s: When the send was called.
        state: `open` while it is under way or its process has died in it, then `accepted`, `unknown` or `refused`.
        executed_ms: Redis' times at which it was carried out; several where it was repeated.
        executed_s: The same by the monotonic clock.
        new: For each time that it was carried out 1 if it was new, 0 if it merged; `None` where the server told only of
            how many of several messages are new.
        basis: What its slot follows from; empty for its content.
    """

    number: int
    topic: str
    content: str
    what: int
    bit: int
    fixed_ms: int
    begun_s: float
    state: str = "open"
    executed_ms: list[int] = field(default_factory=list[int])
    executed_s: list[float] = field(default_factory=list[float])
    new: list[int | None] = field(default_factory=list[int | None])
    basis: str = ""


@dataclass(eq=False)
class Run:
    """One handling of one delivery; `end_s` is infinite where its process died in it.

    Attributes:
        topic: Name of its topic; of a stream `topic@group`, since each group handles all entries.
        entry: The id of its entry, in a stream: a send that is repeated makes another one.
        process: Name of its process, and `life` tells its lives apart.
        stamp: Its claim stamp; `claimed_ms` is Redis' time then.
        score: Its score in store.
        epoch: The fencing token of the slot's owner: its epoch, but after `adopt`; 0 without ZooKeeper.
        lease_until_s: When its lease ended at the earliest, at its beginning.
        carried: The numbers of the sends that it stands for, as far as its body tells.
        wrong: What is wrong with its body; empty where nothing is.
        outcome: `acked`, `failed`, `late` (lost its lease), `unknown` (no reply to its ack) or empty.
        lost_s: When the library said that its lease was lost.
    """

    process: str
    life: int
    topic: str
    slot: int
    content: str
    claimed_ms: int
    stamp: int
    score: int
    attempt: int
    epoch: int
    start_s: float
    lease_until_s: float
    carried: tuple[int, ...] = ()
    wrong: str = ""
    end_s: float = FOREVER_S
    outcome: str = ""
    lost_s: float = FOREVER_S
    entry: str = ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A time in which something went wrong.

    Attributes:
        kind: The kind of fault.
        who: A process; empty for all.
        from_s: Its beginning; of a restart that forgets, since when all is forgotten.
        to_s: Its end.
    """

    kind: str
    who: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class ScheduleMark:
    """A change of a schedule that succeeded at last.

    Attributes:
        name: Name of the schedule.
        what: `put`, `older`, `remove` or `run`.
        from_ms: Redis' time before it: nothing was late then, except for a run by hand.
        to_ms: Redis' time after it.
        every_ms: The interval from then on; 0 except for `put`.
        catch_up: Whether each missed time is sent.
        done: Whether the last call changed something. If it did not, the reply to an earlier one may have been lost.
    """

    name: str
    what: str
    from_ms: int
    to_ms: int
    every_ms: int
    catch_up: bool
    done: bool


@dataclass
class History:
    """All of it.

    Attributes:
        topics: By name; those of streams by the names of their `readers`, too.
        sends: In the order of their numbers.
        runs: In the order of their beginning.
        troubles: In no order.
        moves: When which processes stopped, started, or met with a trouble of their sessions: slots may pass to others
            then, and a handler that outlasts its drain time loses what it has.
        marks: Changes of schedules, in the order of their times.
        dead: Topic and content of what is dead at the end.
        holds: When contents stood in prepare, by topic and content; not of streams. `held_in` has the same
            by topic and slot.
        replicated: Whether an accepted send is on a replica, so that the server does not forget it.
        economy: Whether the workers idle in economy.
        patience_s: How long what is due, or claimed, may wait.
    """

    topics: dict[str, TopicPlan] = field(default_factory=dict[str, TopicPlan])
    sends: list[Sent] = field(default_factory=list[Sent])
    runs: list[Run] = field(default_factory=list[Run])
    troubles: list[Trouble] = field(default_factory=list[Trouble])
    moves: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    marks: list[ScheduleMark] = field(default_factory=list[ScheduleMark])
    dead: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    holds: dict[tuple[str, str], list[Hold]] = field(default_factory=dict[tuple[str, str], list[Hold]])
    held_in: dict[tuple[str, int], list[Hold]] = field(default_factory=dict[tuple[str, int], list[Hold]])
    replicated: bool = False
    economy: bool = False
    patience_s: float = PATIENCE_S
    _sent_of: dict[tuple[str, str], list[Sent]] = field(default_factory=dict[tuple[str, str], list[Sent]])

    def note_sent(self, sent: Sent) -> None:
        """Note a send."""
        self.sends.append(sent)
        self._sent_of.setdefault((sent.topic, sent.content), []).append(sent)

    def longest_wait_s(self, topic: str) -> float:
        """Return how long a message of which no hint has told may wait for a worker in economy; 0 for all others.

        Source: docs/operate/economy.md.
        """
        if not self.economy:
            return 0.0
        topics = {each.name: each for each in self.topics.values()}
        listeners = sum(len(readers(each)) for each in topics.values())
        streams = any(each.kind == "stream" for each in topics.values())
        return (LONG_LOOK_S if streams else LOOK_S) * listeners * self.topics[topic].slots

    def sent_of(self, topic: str, content: str) -> list[Sent]:
        """Return the noted sends of a content."""
        return self._sent_of.get((topic, content), [])

    def note_holds(self, topic: str, slot: int, content: str, holds: list[Hold]) -> None:
        """Note when a content stood in prepare."""
        self.holds[topic, content] = holds
        self.held_in.setdefault((topic, slot), []).extend(holds)

    def met_meanwhile(self, hold: Hold, before_s: float) -> bool:
        """Return whether some process met with a trouble during a claim, or slots passed to others.

        `before_s`: how long before the claim may have begun what ended in that.
        """
        from_s, to_s = clock_s(hold.from_ms), clock_s(hold.lease_ms)
        return any(
            each.kind != "lose_hints" and each.from_s < to_s and each.to_s > from_s for each in self.troubles
        ) or any(from_s - before_s <= at_s <= to_s for at_s, _ in self.moves)

    def of_content(self) -> dict[tuple[str, str], tuple[list[Sent], list[Run]]]:
        """Return the sends and runs of each topic, in a stream of each group, and content."""
        found: dict[tuple[str, str], tuple[list[Sent], list[Run]]] = {}
        for sent in self.sends:
            for reader in readers(self.topics[sent.topic]):
                found.setdefault((reader, sent.content), ([], []))[0].append(sent)
        for run in self.runs:
            found.setdefault((run.topic, run.content), ([], []))[1].append(run)
        return found

    def forgotten(self, from_s: float, to_s: float) -> bool:
        """Return whether the server forgot something that it did in this time."""
        return any(each.kind == "forget" and each.from_s <= to_s and from_s <= each.to_s for each in self.troubles)

    def met(self, who: str, from_s: float, to_s: float, *kinds: str) -> list[Trouble]:
        """Return the troubles of these kinds that a process met in a time; by default of all but lost hints.

        A lost hint is no cause of anything, since everybody looks by himself as well.
        """
        return [
            each
            for each in self.troubles
            if each.who in ("", who)
            and each.from_s < to_s
            and each.to_s > from_s
            and (each.kind in kinds if kinds else each.kind != "lose_hints")
        ]


def clock_s(ms: float) -> float:
    """Return a time of Redis' clock on the monotonic one."""
    return (ms - EPOCH_MS) / 1000 + START_S


def ms_of(at_s: float) -> int:
    """Return a time of the monotonic clock on Redis' clock."""
    return EPOCH_MS + round((at_s - START_S) * 1000)


def readers(topic: TopicPlan) -> list[str]:
    """Return under which names the handlings of a topic stand."""
    return [f"{topic.name}@{group}" for group in GROUPS] if topic.kind == "stream" else [topic.name]


def bits_of(value: Any) -> set[int]:
    """Return the bits of a sum."""
    number = int(value)
    return {bit for bit in range(number.bit_length()) if number >> bit & 1}
