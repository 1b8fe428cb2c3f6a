"""Plans claims from a topic's slots, fairly and only where something is due. Shared by consumers and listeners.

A planner learns from the replies of claims and from wake hints when each of its slots is due. Either may get lost, and
a lease that expires announces itself to nobody. So `look` reads due times from Redis, for one planner or for several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from rmq._broker.broker import Broker, QueueBroker
from rmq._broker.claims import MAX_BATCH
from rmq._broker.keys import slot_keys
from rmq._claiming.due_times import DueTimes
from rmq._claiming.rate_limit import RateLimiter
from rmq._claiming.rounds import FEWEST_SLOTS, PATIENCE_S, ClaimPlan, ClaimRequest, FetchSize, SlotOwner
from rmq._claiming.wakeups import Wakeups
from rmq._io.reports import Sparing, reporter
from rmq._model.claims import Selection
from rmq._model.deliveries import Claim
from rmq._model.replies import NO_OWNER, ClaimReply, Owner
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic
from rmq._transport.call import Call, join, plain
from rmq._transport.connections import Connections
from rmq.errors import RedisUnavailableError, RmqError, ScriptFailedError

log = reporter("rmq.claimer")

TROUBLE_PAUSE_S = 0.2
"""Seconds without claims from a slot after a failed one, so that it does not delay other slots, and fewer messages wait
for their leases to expire because the reply to a claim was lost."""

POSTPONE_S = 0.05
"""Seconds without claims from a slot from which the holder may not claim yet."""

UNRESPONSIVE_SLOTS_PER_S = 10_000
"""Maximum number of slots of unresponsive servers that are tried again per second."""

MISSED_WAKEUP_MS = 2_000
"""A hint counts as missed if a slot has been due for this long without one."""

ROTATED_SLOTS = 8
"""Slots of a cluster that a consumer checks at a time while hints arrive, so that it sends few calls."""

IDLE_S = 0.02
"""A holder with nothing to claim for this long is idle: its acks do not wait for a claim."""

LOOK_SLOTS = 256
"""Maximum number of slots whose due times one script call reads."""

REST_S = 30.0
"""Longest wait of an idle thread, in seconds. Events wake it earlier: this only bounds the delay after a missed one."""


class ClaimPlanner:
    """Knows when each slot is due, and plans claims there; a `Fetcher` carries them out. Thread-safe.

    Args:
        connections: The connections to the topic's servers.
        topic: The registered definition.
        slots: The slots to claim from.
        may_claim: Called right before each claim: returns whether this owner still owns the slot. True by default.
        source: The broker of the slots; by default that of the topic's type.
        on_fenced: Called with a slot, the epoch of a newer owner in it, and the ensemble of that epoch.

    Attributes:
        joins: Whether claims from several slots may share a call.
        due_times: Due times of the slots; read and changed only while `changed` is held.
        troubles: Logs problems that repeat.
        regained: Slots that are owned again, in a newer epoch. The holder may have deliveries of an older epoch.
        missed: Whether hints may have been missed since all slots were last checked.
        unheard: A slot that was found to be due without a hint; `None` if there is none.
        foreign: Slots that belong to another ensemble in Redis, with the error of the last claim.
        changed: Guards the due times; notified when threads in `wait` have to look again.
    """

    def __init__(
        self,
        connections: Connections,
        topic: Topic,
        slots: Sequence[int],
        may_claim: Callable[[int, Owner], bool] | None = None,
        source: Broker | None = None,
        on_fenced: Callable[[int, int, str], object] | None = None,
    ) -> None:
        self.topic = topic
        self.connections = connections
        self.broker: Broker = source or QueueBroker(connections, topic)
        self.joins = not connections.multi_node
        self.rate_limiter = RateLimiter(connections, topic, self.broker.group)
        self.due_times = DueTimes(slots)
        self.changed = connections.runtime.condition()
        self.on_fenced = on_fenced
        self.foreign: dict[int, str] = {}
        self.regained: set[int] = set()
        self.troubles = Sparing()
        self.missed = True
        self.unheard: int | None = None
        self._unannounced: tuple[int, float] | None = None
        """A slot that was found to be due, with its due time; `None` once a hint has arrived."""
        self._hinted_s = float("-inf")
        self._looked_at = 0
        self._may_claim = may_claim
        self._owners: Mapping[int, Owner] = dict.fromkeys(slots, NO_OWNER)
        self._owners_before: dict[int, Owner] = {}
        self._handover_gate = HandoverGate(connections, topic)
        self._fetch_size = FetchSize(FEWEST_SLOTS if self.joins else 1)
        self._resume: dict[int, int] = {}
        self._sleeping: list[float] = []
        """Time at which the wait of each thread in `wait` ends, on the clock of `monotonic_s`."""
        self._brought_s = float("-inf")
        self._held_back_until_s = 0.0

    def set_owned(self, owners: Mapping[int, Owner]) -> None:
        """Claim from exactly these slots from now on, in the names of these owners."""
        with self.changed:
            if owners != self._owners:
                self.due_times.set_slots(owners)
                before = self._owners_before
                self.regained |= {slot for slot, owner in owners.items() if before.get(slot, owner) != owner}
                before.update(owners)
                self._owners = dict(owners)
                self.foreign = {slot: text for slot, text in self.foreign.items() if slot in owners}
                self.changed.notify_all()

    def hold_back(self, delay_s: float) -> None:
        """Plan no claim for `delay_s` seconds, or for longer if an earlier call requires it."""
        with self.changed:
            self._held_back_until_s = max(self._held_back_until_s, monotonic_s() + delay_s)

    def held_back_s(self) -> float:
        """Return the remaining time of `hold_back`, in seconds."""
        return max(0.0, self._held_back_until_s - monotonic_s()) if self._held_back_until_s else 0.0

    def wake_all(self) -> None:
        """Wake the threads in `wait`, so that they check again."""
        with self.changed:
            self.changed.notify_all()

    def wait(self, longest_s: float, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait until a slot is due, something changes, or `longest_s` have passed.

        Args:
            longest_s: Longest wait in seconds.
            unless: Do not wait if this returns true. Code that makes it true calls `wake_all` afterwards.
        """
        with self.changed:
            if unless() or (timeout_s := self._wait_s(longest_s)) <= 0:
                return
            until_s = monotonic_s() + timeout_s
            self._sleeping.append(until_s)
            try:
                self.changed.wait(timeout_s)
            finally:
                self._sleeping.remove(until_s)

    def wait_s(self, longest_s: float) -> float:
        """Return the seconds until messages may be claimed, at most `longest_s`."""
        with self.changed:
            return self._wait_s(longest_s)

    def knows_due(self, number: int) -> bool:
        """Return whether as many slots as this are known to be due."""
        with self.changed:
            return len(self.due_times.due(monotonic_s(), number)) == number

    def _wait_s(self, longest_s: float) -> float:
        due_s = self.due_times.wait_s(monotonic_s(), longest_s)
        if not (self.rate_limiter.limited or self._held_back_until_s):
            return due_s
        return max(due_s, min(longest_s, max(self.rate_limiter.dry_s(), self.held_back_s())))

    def _wake_for_due(self) -> None:
        """Wake the threads in `wait` if a slot becomes due before the first of their waits ends. `changed` is held.

        The thread that received the due time may be busy by then.
        """
        if self._sleeping and monotonic_s() + self._wait_s(REST_S) < min(self._sleeping):
            self.changed.notify_all()

    @property
    def slots(self) -> list[int]:
        """The slots that are claimed from, in no particular order."""
        return list(self._owners)

    @property
    def slot_count(self) -> int:
        """Number of slots that are claimed from."""
        return len(self._owners)

    def take_wakeups(self, hints: Wakeups) -> None:
        """Process wake hints. Hints for slots of other owners have no effect."""
        self.missed = self.missed or hints.missed
        if hints.due:
            self._hinted_s, self._unannounced = monotonic_s(), None
            with self.changed:
                for slot, due_ms in hints.due:
                    self.due_times.hint(slot, due_ms)
                self.changed.notify_all()

    def look(self, *, at_all: bool = False) -> None:
        """Read the due time of each slot from Redis: this finds lost hints, nacks by others and expired leases.

        In a cluster each slot costs a call of its own. There only some are checked in turn, as long as hints arrive.

        Args:
            at_all: Check all slots in a cluster, too.

        Raises:
            RedisUnavailableError: Redis did not answer before the deadline.
            ScriptFailedError: A slot's data cannot be read; the other slots were checked.
        """
        self.rate_limiter.refresh()
        at_all = at_all or self.missed or not self.connections.multi_node
        self.missed = False
        look(self.connections, [(self, slot) for slot in (self.slots if at_all else self.next_slots(ROTATED_SLOTS))])

    def next_slots(self, most: int) -> list[int]:
        """Return up to `most` slots to check, in turn."""
        slots = self.slots
        first, self._looked_at = self._looked_at % max(1, len(slots)), self._looked_at + most
        return [*slots[first:], *slots[:first]][:most]

    def learn_due(self, times: Sequence[tuple[int, int]], now_ms: int, asked_s: float) -> None:
        """Update the due times of slots that were read.

        Args:
            times: Slots with their due times, 0 for never.
            now_ms: Redis' time.
            asked_s: Time at which the call was sent, on the clock of `monotonic_s`.
        """
        received_s, late_s = monotonic_s(), MISSED_WAKEUP_MS / 1000
        with self.changed:
            if self._unannounced is not None and received_s - self._unannounced[1] > late_s:
                self.unheard, self._unannounced = self._unannounced[0], None
            if received_s - max(self._brought_s, self._hinted_s) > late_s:
                for slot, due_ms in times:
                    if 0 < due_ms <= now_ms and not 0 < self.due_times.due_ms(slot) <= now_ms:
                        if due_ms < now_ms - MISSED_WAKEUP_MS:
                            self.unheard = slot
                        else:  # or a PRIORITY topic, which does not know since when; its hint may be on the way
                            self._unannounced = slot, received_s
            self._note_due(times, now_ms, received_s, asked_s)

    def _note_due(self, times: Iterable[tuple[int, int]], now_ms: int, received_s: float, sent_s: float) -> None:
        """Update the due times of slots, and wake the threads that have to look again. `changed` is held."""
        if self.due_times.learn(times, now_ms, received_s, sent_s):  # there is something for the others
            self.changed.notify_all()
        else:
            self._wake_for_due()

    def expect(self, slot: int) -> None:
        """Treat a slot as due, because it has changed since the last claim."""
        with self.changed:
            self.due_times.hint(slot, 0)
            self.changed.notify_all()

    @property
    def nodes(self) -> int:
        """Number of servers that may have these slots, at least 1."""
        return 1 if self.joins else max(1, min(len(self.connections.router.masters()), len(self._owners)))

    def plan(
        self,
        limit: int,
        settled: Sequence[Selection] = (),
        held: Callable[[], Sequence[Claim]] | None = None,
        most_each: int = MAX_BATCH,
    ) -> ClaimPlan:
        """Pick the slots to claim from.

        Slots that have been due longest are first, whichever slots have outcomes: otherwise a slow handler, which
        claims one message at a time, would never leave its slot. In a cluster each slot costs a call, so slots with
        outcomes are claimed from, too, if there is room. In a shared call, settling alone costs a fifth of a claim.

        Args:
            limit: Maximum number of messages; 0 plans no claim. A rate limit of the topic may allow fewer.
            settled: Rows whose outcomes are sent with the claims.
            held: Returns all claims of the holder; by default those of the settled rows.
            most_each: Maximum number of messages from one slot, up to `MAX_BATCH`.

        Returns:
            The plan, which must be carried out: no other thread picks its slots until then.
        """
        tokens = 0
        if self._held_back_until_s and self.held_back_s():
            limit = 0
        if limit and self.rate_limiter.limited:
            limit = tokens = self.rate_limiter.take(limit) if self.wait_s(1.0) == 0 else 0
        if not limit:
            return ClaimPlan([], False)
        limit, most = self._fetch_size.size_for(limit, most_each, self.nodes)
        with self.changed:
            slots = self.due_times.due(monotonic_s(), most)
            if self.connections.unresponsive_nodes:
                slots = self._without_unresponsive(slots, most)
            if not self.joins:
                slots += self._settled_too(settled, slots)[: most - len(slots)]
            if self._may_claim is not None:
                slots = [slot for slot in slots if self._is_still_ours(slot, self._may_claim)]
            if self.regained:
                slots = self._without_unsettled(slots, [claim for claim, _ in settled] if held is None else held())
            self.due_times.picked(slots)
            requests = [ClaimRequest(slot, self._owners[slot], start=self._resume.get(slot, 0)) for slot in slots]
        # an owner that lost a slot and has it back with its epoch may claim
        in_order, is_open = self.broker.in_order, self._handover_gate.is_open
        open_ = [each for each in requests if in_order or each.owner == NO_OWNER or is_open(each.slot, each.owner)]
        if open_:
            share, extra = divmod(limit, len(open_))
            for index, request in enumerate(open_):
                request.limit = min(share + (index < extra), most_each)
        return ClaimPlan(requests, bool(requests) or self.wait_s(IDLE_S) < IDLE_S, tokens)

    def postpone(self, slots: Iterable[int]) -> None:
        """Plan no claim from these slots for `POSTPONE_S`, because the holder may not claim from them yet."""
        with self.changed:
            for slot in slots:
                self.due_times.postpone(slot, monotonic_s(), POSTPONE_S)
            self._wake_for_due()

    def learn(self, requests: Sequence[ClaimRequest], sent_s: float, slots: int) -> None:
        """Update the due times of slots, Redis' time and the size of messages from replies.

        Args:
            requests: Requests whose replies have arrived.
            sent_s: Time at which their calls were sent, on the clock of `monotonic_s`.
            slots: Number of slots of their round; some of its replies may not have arrived.
        """
        now_ms, asked, received_s = 0, 0, monotonic_s()
        times: list[tuple[int, int]] = []
        replies: list[ClaimReply[Any]] = []
        served: list[int] = []
        with self.changed:
            for request in requests:
                reply = request.reply
                if not isinstance(reply, ClaimReply):
                    self.due_times.postpone(request.slot, received_s, TROUBLE_PAUSE_S)
                    continue
                now_ms = reply.now_ms
                times.append((request.slot, reply.next_due_ms))
                if request.limit:  # else nothing was searched
                    asked += request.limit
                    replies.append(reply)
                    if reply.messages:
                        served.append(request.slot)
                    if reply.resume or request.start:
                        self._resume[request.slot] = reply.resume
            if served:
                self._brought_s = received_s
            if replies and self._fetch_size.note(asked, replies, slots):
                self.due_times.served(served)  # the slots that got nothing go first next time
            self._note_due(times, now_ms, received_s, sent_s)

    def open_drained(self, requests: Sequence[ClaimRequest]) -> None:
        """Check whether slots taken over from an earlier owner may be claimed from, and make those due."""
        self._handover_gate.open_drained([(request.slot, request.owner) for request in requests])
        with self.changed:
            for request in requests:
                if self._handover_gate.is_open(request.slot, request.owner):
                    self.due_times.hint(request.slot, 0)
                    self.changed.notify_all()
                else:
                    self.due_times.postpone(request.slot, monotonic_s(), TROUBLE_PAUSE_S)
                    self._wake_for_due()

    def all_unresponsive(self) -> bool:
        """Return whether all servers of the slots are unresponsive."""
        return bool(self.connections.unresponsive_nodes) and all(map(self.is_unresponsive, list(self._owners)))

    def is_unresponsive(self, slot: int) -> bool:
        """Return whether the server of a slot is unresponsive, without a request."""
        return self.connections.unresponsive(slot_keys(self.topic.name, slot).store)

    def _without_unresponsive(self, slots: list[int], most: int) -> list[int]:
        """Postpone slots of unresponsive servers, which would cost a round; return other slots that are due."""
        now_s, pause_s = monotonic_s(), max(TROUBLE_PAUSE_S, len(self._owners) / UNRESPONSIVE_SLOTS_PER_S)
        while silent := [slot for slot in slots if self.is_unresponsive(slot)]:
            for slot in silent:
                self.due_times.postpone(slot, now_s, pause_s)
            slots = self.due_times.due(now_s, most)
        return slots

    def _without_unsettled(self, slots: Sequence[int], held: Iterable[Claim]) -> list[int]:
        """Postpone slots of which the holder has claims of an earlier epoch: a new claim would fence their acks."""
        owners, regained = self._owners, self.regained
        older = [claim for claim in held if claim.slot in regained and claim.owner != owners.get(claim.slot)]
        at_work = {claim.slot for claim in older if claim.open_rows(claim.live_rows())}
        regained &= {claim.slot for claim in older if claim.live_rows()}
        for slot in regained.intersection(slots):
            self.due_times.postpone(slot, monotonic_s(), TROUBLE_PAUSE_S if slot in at_work else POSTPONE_S)
        return [slot for slot in slots if slot not in regained]

    def _settled_too(self, settled: Iterable[Selection], picked: Sequence[int]) -> list[int]:
        """Return the slots with outcomes that their present owner may send, unless they are picked already."""
        owners = dict.fromkeys((claim.slot, claim.owner) for claim, _ in settled)
        slots = [slot for slot, owner in owners if self._owners.get(slot) == owner and slot not in picked]
        silent = self.connections.unresponsive_nodes
        return [slot for slot in slots if not (silent and self.is_unresponsive(slot))]

    def _is_still_ours(self, slot: int, may_claim: Callable[[int, Owner], bool]) -> bool:
        if may_claim(slot, self._owners[slot]):
            return True
        self.due_times.postpone(slot, monotonic_s(), TROUBLE_PAUSE_S)  # until we are told whose it is
        return False


Places = Sequence[tuple[ClaimPlanner, int]]
"""Slots of one topic or several, each with its planner."""


def look(connections: Connections, places: Places, deadline_s: float | None = None) -> None:
    """Read the due times of slots, up to `LOOK_SLOTS` in a call of each script; in a cluster with one call per slot.

    Args:
        connections: The connections to the servers of the topics.
        places: The slots; those of one topic are adjacent.
        deadline_s: In a cluster, how long to try again, in seconds; the client's deadline by default.

    Raises:
        RedisUnavailableError: Redis did not answer before the deadline. In a cluster, no server answered.
        ScriptFailedError: A slot's data cannot be read; the other slots were checked.
    """
    failed: list[RmqError] = []
    for first in range(0, len(places), LOOK_SLOTS):
        failed += _look(connections, places[first : first + LOOK_SLOTS], deadline_s)
    if failed:
        raise failed[0]


def _look(connections: Connections, places: Places, deadline_s: float | None) -> list[RmqError]:
    """Read the due times of slots; return the errors."""
    if connections.multi_node:
        return _look_one_by_one(connections, places, deadline_s)
    try:
        by_script: dict[str, list[tuple[ClaimPlanner, list[int], Call[tuple[int, list[int]]]]]] = {}
        for planner, group in groupby(places, key=itemgetter(0)):
            slots = [slot for _, slot in group]
            call = planner.broker.look_call(slots)
            by_script.setdefault(call.script, []).append((planner, slots, call))
        for parts in by_script.values():
            calls, asked_s = [call for _, _, call in parts], monotonic_s()
            now_ms, times = connections.run(join(calls))
            due = iter(times)
            for planner, slots, _ in parts:
                planner.learn_due([(slot, next(due)) for slot in slots], now_ms, asked_s)
    except ScriptFailedError:  # one broken slot must not hide the others
        topics = [list(group) for _, group in groupby(places, key=itemgetter(0))]
        if len(topics) == 1:
            return _look_one_by_one(connections, places, deadline_s)
        return [error for each in topics for error in _look(connections, each, deadline_s)]
    return []


def _look_one_by_one(connections: Connections, places: Places, deadline_s: float | None) -> list[RmqError]:
    """Read the due times of slots with one call each; return the errors if no node answers.

    Slots of an unresponsive node are omitted until it answers.
    """
    failed: list[RmqError] = []
    if connections.unresponsive_nodes:
        answering = [(planner, slot) for planner, slot in places if not planner.is_unresponsive(slot)]
        for planner, _ in set(places).difference(answering):
            planner.missed = True
        places = answering
    asked_s = monotonic_s()
    calls = [planner.broker.look_call([slot]) for planner, slot in places]
    answers: list[Any] = connections.run_many(calls, PATIENCE_S, deadline_s)
    for (planner, slot), answer in zip(places, answers, strict=True):
        if isinstance(answer, RmqError):
            failed.append(answer)
            planner.missed = True
        else:
            now_ms, [due_ms] = answer
            planner.learn_due([(slot, due_ms)], now_ms, asked_s)
    some = len(failed) < len(places) and all(isinstance(error, RedisUnavailableError) for error in failed)
    return [] if some else failed


class HandoverGate:
    """The slots that a planner may claim from after a handover.

    Args:
        connections: The connections to the topic's servers.
        topic: The registered definition.
    """

    def __init__(self, connections: Connections, topic: Topic) -> None:
        self._connections = connections
        self._topic = topic
        self._open: dict[int, int] = {}  # slot -> epoch in which it was taken over
        self._logged: dict[int, int] = {}  # slot -> epoch for which the log says that we wait

    def is_open(self, slot: int, owner: Owner) -> bool:
        """Return whether a slot was opened for this owner's epoch."""
        return self._open.get(slot) == owner.epoch

    def open_drained(self, slots: Sequence[SlotOwner]) -> None:
        """Open the slots in which nothing of an earlier owner is in flight.

        The earlier owner's handler may still run: paused, disconnected, or slower than the drain timeout. The new epoch
        fences its calls to Redis, but not the handler. So nothing is claimed until each of its messages is settled or
        its lease has expired. As long as leases hold, the messages of a slot are handled one after the other.
        """
        calls = [plain("ZCARD", slot_keys(self._topic.name, slot).prepare) for slot, _ in slots]
        for (slot, owner), in_flight in zip(slots, self._connections.run_many(calls, PATIENCE_S), strict=True):
            if isinstance(in_flight, RmqError):
                continue
            if not in_flight:
                self._open[slot] = owner.epoch
            elif self._logged.get(slot) != owner.epoch:
                self._logged[slot] = owner.epoch
                text = "slot %d of topic %s waits until %d messages of an earlier owner are settled or their leases end"
                log.info(text, slot, self._topic.name, in_flight)
