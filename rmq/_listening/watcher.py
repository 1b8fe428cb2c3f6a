"""Watches over all listeners of a client in one job: wake hints, slots that may be due, and running handlers.

Slots are polled for due messages: each second, or seldom while hints arrive. Each planner's slots have their turns, and
slots whose turns come at the same time share a script call, whatever their topics. While the hints of a topic are
proven to arrive, each of its slots has a turn every few seconds, at times that are spread over the planners; in economy
mode one slot of the process has a turn every minute. If a look finds a due message that no hint has announced, the
topic is polled as without hints for a while. `IdlePolicy` has the pauses of an idle process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count

from rmq._claiming.claim_planner import LOOK_SLOTS, ROTATED_SLOTS, ClaimPlanner, look
from rmq._claiming.rounds import PATIENCE_S
from rmq._claiming.wakeups import Wakeups, WakeupSubscriber
from rmq._io.backend import Background
from rmq._io.reports import Sparing, reporter
from rmq._listening.listener import Listener
from rmq._listening.listener_runner import ListenerRunner
from rmq._listening.worker import LOOK_EVERY_S, TROUBLE_PAUSE_S
from rmq._model.times import monotonic_s
from rmq._model.topics import TopicType
from rmq._transport.connections import Connections
from rmq.errors import InvalidValueError

log = reporter("rmq.runtime")

DEAF_S = 0.25
"""Longest wait while no hint can arrive, so that the subscription is tried again soon."""

IDLE = ("normal", "economy")
"""Modes of a process while no message is due. `RmqClient.start` explains both."""

BEAT_S, IDENTIFY_S, TIDY_S = 40.0, 300.0, 900.0
"""Seconds between heartbeats, reads of the identity of Redis, and trims of one slot of a stream, in economy mode. The
first is shorter than the time after which a silent worker is forgotten."""

POLL_S = 8.0
"""Seconds between polls of a slot while hints are proven to arrive, and between these proofs."""

PROBE_S, LOOK_S, LONG_LOOK_S = 40.0, 60.0, 120.0
"""Seconds between proofs that hints arrive, and between polls of one slot, in economy mode. `LONG_LOOK_S` applies to a
process with stream topics, whose polls take more commands, or on a cluster, whose map is read as well."""


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """Minimum pauses between the calls of an idle process to Redis, in seconds; 0 keeps the usual pauses.

    Attributes:
        beat_s: Between two heartbeats.
        identify_s: Between two reads of the identity of Redis.
        tidy_s: Between the trims of two slots of a stream while no message is handled; 0 trims all slots each time.
        probe_s: Between two proofs that the hints of a server arrive.
        poll_s: Between two polls of a slot while hints are proven to arrive.
        look_s: The same between the polls of two slots in economy mode; else 0.
    """

    beat_s: float = 0.0
    identify_s: float = 0.0
    tidy_s: float = 0.0
    probe_s: float = POLL_S
    poll_s: float = POLL_S
    look_s: float = 0.0

    @property
    def economical(self) -> bool:
        """True if an idle process polls less often than usual."""
        return self.look_s > 0


NORMAL = IdlePolicy()


def idle_policy(idle: str, listeners: Iterable[Listener], *, multi_node: bool) -> IdlePolicy:
    """Return the pauses of an idle process in a mode.

    In economy mode the process sends fewer than ten commands per minute.

    Args:
        idle: `normal` or `economy`.
        listeners: The listeners of the process.
        multi_node: Whether their topics are on several servers.

    Raises:
        InvalidValueError: `idle` is neither `normal` nor `economy`.
    """
    if idle not in IDLE:
        raise InvalidValueError(f"idle is {idle!r}; it must be normal or economy")
    if idle == "normal":
        return NORMAL
    kinds = [each.topic.type for each in listeners]
    streams = kinds.count(TopicType.STREAM)
    look_s = LONG_LOOK_S if streams or multi_node else LOOK_S
    return IdlePolicy(BEAT_S, IDENTIFY_S, TIDY_S * streams, PROBE_S, look_s=look_s)


class Watcher(Background):
    """Passes hints to the listeners, polls their slots in case one was lost, and checks their running handlers.

    Its cost to an idle process does not depend on the number of listeners: one job, and one connection to each server.

    Args:
        connections: Connections to Redis.
        runners: The running listeners.
        pace: Pauses between calls to Redis while no message is due.
    """

    def __init__(self, connections: Connections, runners: Sequence[ListenerRunner], pace: IdlePolicy) -> None:
        super().__init__(connections.runtime, "rmq-watch")
        self._runners = runners
        self._by_topic: dict[str, list[ListenerRunner]] = defaultdict(list)
        for runner in runners:
            self._by_topic[runner.topic.name].append(runner)
        self._places = list(
            dict.fromkeys((runner.topic.name, slot) for runner in runners for slot in range(runner.topic.slots))
        )
        """The topic and slot of each number that a hint may have."""
        self._hints = WakeupSubscriber.of_places(connections, self._places)
        self._slots = SlotPoller(
            connections, [planner for runner in runners for planner in runner.planners], self._hints, pace
        )
        self._troubles = Sparing()
        self._check_s = 0.0

    def request_stop(self) -> None:
        """Stop; does not wait."""
        self._stopping.set()
        self._hints.end()

    def run(self) -> None:
        """Watch until `request_stop`."""
        while not self._stopping.is_set():
            try:
                hints = self._hints.read(self._pause_s())
                self._check(self._pass_on(hints))
                if self._slots.step(missed=hints.missed):
                    self._check_s = 0.0  # what was found may be due
                if not self._hints.connected:
                    self._stopping.wait(min(DEAF_S, self._pause_s()))
            except Exception as error:
                self._troubles.warning(log, type(error), "due slots could not be checked; trying again: %s", error)
                self._stopping.wait(TROUBLE_PAUSE_S)
        self._hints.close()

    def _pause_s(self) -> float:
        """Return the seconds that the watcher may wait for hints."""
        check_s = max(0.0, self._check_s - monotonic_s())
        return min(check_s, self._slots.wait_s(), self._hints.max_wait_s())

    def _pass_on(self, hints: Wakeups) -> Sequence[ListenerRunner]:
        """Pass hints to the listeners of their topics; return these listeners."""
        by_topic: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, due_ms in hints.due:
            topic, slot = self._places[number]
            by_topic[topic].append((slot, due_ms))
        for topic, due in by_topic.items():
            for runner in self._by_topic[topic]:
                runner.take_wakeups(due)
        return [runner for topic in by_topic for runner in self._by_topic[topic]]

    def _check(self, hinted: Sequence[ListenerRunner]) -> None:
        """Check the handlers of listeners that got hints, and at intervals of all."""
        now_s = monotonic_s()
        if now_s >= self._check_s:
            self._check_s, hinted = float("inf"), self._runners
        for runner in hinted:
            self._check_s = min(self._check_s, now_s + runner.check())


DISTRUST_S = 600.0
"""Seconds for which a listener is polled as usual after it found a due message without a hint, as from a producer that
may not publish on the channel."""

JOINED = 8
"""A turn that comes within this part of its pause, an eighth, is taken together with one that has come."""

LONGEST_JOINED_S = 1.0
"""Longest time by which a turn is early for this reason, in seconds."""


class _Turns:
    """The turns of one planner: when its next slots are looked at, and how many.

    Attributes:
        next_s: Time of the next look, on the clock of `monotonic_s`.
        trusts: Whether its hints are relied on.
        distrusts_until_s: Time until which they are not relied on, even if they are proven to arrive.
        left: Number of looks that are made at once, until each slot was looked at.
        share: Part of its pause that it waits the first time, so that the turns of all planners are spread over time.
        begins: Whether its first pause since its hints are relied on is still to come.
    """

    def __init__(self, planner: ClaimPlanner, share: float) -> None:
        self.planner = planner
        self.next_s = self.distrusts_until_s = float("-inf")
        self.trusts = self.begins = False
        self.left = 0
        self.share = share


class SlotPoller:
    """Polls the slots of all listeners of a client.

    Args:
        connections: Connections to Redis.
        planners: Claim planners of the slots.
        hints: The subscription, which proves that hints arrive.
        pace: The intervals.
    """

    def __init__(
        self, connections: Connections, planners: Sequence[ClaimPlanner], hints: WakeupSubscriber, pace: IdlePolicy
    ) -> None:
        self._connections = connections
        self._hints = hints
        self._pace = pace
        self._all = [_Turns(planner, (number + 1) / len(planners)) for number, planner in enumerate(planners)]
        self._proven: frozenset[str] = frozenset()
        self._number = count()
        self._turns = [(each.next_s, next(self._number), each) for each in self._all]

    def wait_s(self) -> float:
        """Return the seconds until `step` has something to do."""
        look_s = max(0.0, self._turns[0][0] - monotonic_s())
        return min(look_s, self._hints.probe_wait_s(self._pace.probe_s))

    def step(self, *, missed: bool) -> bool:
        """Check the slots whose turn has come, with one call for each script; return whether there were any.

        Args:
            missed: Whether hints may have been missed, so that all slots must be checked.

        Raises:
            RmqError: As `rmq._claiming.claim_planner.look`.
        """
        proven = self._hints.probe(self._pace.probe_s)
        if missed or proven is not self._proven:
            self._proven = proven
            for each in self._all:
                self._judge(each)
                if missed:
                    self._hurry(each)
            self._turns = [(each.next_s, next(self._number), each) for each in self._all]
            heapify(self._turns)
        turns = self._due()
        if not turns:
            return False
        places = [(each.planner, slot) for each in turns for slot in each.planner.next_slots(self._size(each))]
        try:
            for each in turns:
                each.planner.missed = False
                if not self._saves(each):  # else a hint tells when the limit matters
                    each.planner.rate_limiter.refresh()
            look(self._connections, places, PATIENCE_S)  # the hints of other topics wait meanwhile
        finally:
            for each in turns:
                self._note(each)
                heappush(self._turns, (each.next_s, next(self._number), each))
        return True

    def _due(self) -> list[_Turns]:
        """Take the turns that are due, up to the slots of one call, and those that are due soon."""
        now_s, turns, slots = monotonic_s(), list[_Turns](), 0
        while self._turns:
            next_s, _, each = self._turns[0]
            size = self._size(each)
            early_s = min(self._pause_s(each) / JOINED, LONGEST_JOINED_S) if turns else 0.0
            if next_s - early_s > now_s or (turns and slots + size > LOOK_SLOTS):
                break
            heappop(self._turns)
            turns.append(each)
            slots += size
        return turns

    def _note(self, turns: _Turns) -> None:
        """Set the time of the next look after one."""
        planner, now_s = turns.planner, monotonic_s()
        if planner.unheard is not None:
            self._distrust(turns, planner.unheard)
            planner.unheard = None
        self._judge(turns)
        turns.left = max(0, turns.left - 1)
        turns.next_s = now_s if turns.left else now_s + self._first_or_full_pause_s(turns)
        if planner.missed:  # not all could be looked at
            self._hurry(turns)
            turns.next_s = now_s + LOOK_EVERY_S

    def _judge(self, turns: _Turns) -> None:
        """Decide whether to rely on the hints of a planner."""
        trusts = turns.planner.topic.name in self._proven and monotonic_s() >= turns.distrusts_until_s
        if trusts == turns.trusts:
            return
        turns.trusts = turns.begins = trusts
        if not trusts:
            turns.next_s = monotonic_s()
        elif self._pace.economical:  # finds what was sent before the proof, and heard by nobody
            self._hurry(turns)
        else:
            turns.next_s = monotonic_s() + self._first_or_full_pause_s(turns)

    def _first_or_full_pause_s(self, turns: _Turns) -> float:
        share, turns.begins = turns.share if turns.begins else 1.0, False
        return share * self._pause_s(turns)

    def _hurry(self, turns: _Turns) -> None:
        turns.left, turns.next_s = self._parts(turns), monotonic_s()

    def _distrust(self, turns: _Turns, slot: int) -> None:
        if not turns.trusts:
            return
        turns.distrusts_until_s = monotonic_s() + DISTRUST_S
        topic = turns.planner.topic.name
        text = (
            "topic %s: slot %d had a due message without a wake hint, so this listener polls for %g minutes; "
            "producers may lack the right to publish on the channel wake{%s_%d}"
        )
        log.warning(text, topic, slot, DISTRUST_S / 60, topic, slot)

    def _saves(self, turns: _Turns) -> bool:
        return turns.trusts and self._pace.economical and not turns.left

    def _size(self, turns: _Turns) -> int:
        """Return the number of slots of a planner to check in its turn."""
        if self._saves(turns):
            return 1
        slots = turns.planner.slot_count
        if self._connections.multi_node:
            return max(ROTATED_SLOTS, -(-slots // int(self._pace.poll_s)))
        return min(slots, LOOK_SLOTS)

    def _parts(self, turns: _Turns) -> int:
        return -(-turns.planner.slot_count // max(1, self._size(turns)))

    def _pause_s(self, turns: _Turns) -> float:
        """Return the seconds between two turns of a planner."""
        if self._saves(turns):
            return self._pace.look_s * len(self._all)
        parts = max(1, self._parts(turns))
        if turns.trusts:
            return self._pace.poll_s / parts
        return LOOK_EVERY_S if self._connections.multi_node else LOOK_EVERY_S / parts
