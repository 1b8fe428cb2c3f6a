"""Random histories of one slot, on real Redis and on the model at once: every reply and every key must be the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import permutations, product
from typing import Any, TypeVar

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rmq import ControlResult, Owner, Topic, TopicType, WhenFull
from rmq.errors import FencedError, RmqError
from tests.stateful.model import Model
from tests.support.claims import Claimed
from tests.support.core import (
    ALL_SETTLED,
    Ack,
    Call,
    ClaimPart,
    ClaimReply,
    Connections,
    EncodedMessage,
    Nack,
    Outcomes,
    SettleReply,
    WholeClaim,
    control,
    sends,
    slot_keys,
    viewing,
)
from tests.support.core import (
    claims as claiming,
)
from tests.support.core import dead as dead_
from tests.support.one_slot import claim_slot, claim_slots, settle_slot
from tests.support.slots import CLOCK_KEY, T0, read_state, with_hints

T = TypeVar("T")

CONTENTS = (b"a", b"b", b"c", b"\x00\xff{}")
BODIES = (None, None, b"1", b"", b"\x00\xff")
SETTLE = ("ack", "ack", "retry at once", "retry in 700 ms", "retry in 2 s", "spare in 700 ms", "bury", "release")
DELAYS_MS = {"retry in 700 ms": 700, "retry in 2 s": 2_000, "spare in 700 ms": 700}
LONGEST_DELAY_MS = 2_500
STALE = Outcomes([(b"x", 1)], [Nack(b"y", 1)])
"""What settles nothing where nothing is in flight."""

# One draw for what could be several: the time of a run is the number of its draws. Hypothesis draws the first values of
# a list more often than others: they are those that keep messages on the move.
messages = st.lists(st.sampled_from(list(product(range(4), (*range(4), *range(5)), BODIES))), min_size=1, max_size=3)
some = st.sampled_from([[], [], *([index] for index in range(4)), *map(list, permutations(range(4), 2))])
settlements = st.lists(st.sampled_from(list(product(range(10), SETTLE))), max_size=3)
picks = st.lists(st.integers(0, 9), min_size=1, max_size=3)
claims = st.sampled_from(list(product([0, 1, 1, 2, 10], [1, 256], [0, 1], [None, None, 1, 1, 1_000])))
score_choices = st.integers(0, 4)


class SlotMachine(RuleBasedStateMachine):
    """One slot of a topic of one type. Subclasses set the type, what leads to Redis, and how few contents there are."""

    type: TopicType
    definition: Mapping[str, Any] = {}
    connections: Connections
    client: redis.Redis
    contents: tuple[bytes, ...] = CONTENTS
    steps = 0
    of_topic: type[Model] = Model
    """What the slot is held against."""

    # Small bounds, so that everything collides with everything.
    @initialize(
        max_retries=st.sampled_from([3, 2, 1, 0]),
        lease_s=st.integers(1, 3),
        max_backlog=st.sampled_from([None, None, 1, 2]),
        when_full=st.sampled_from([WhenFull.REFUSE, WhenFull.DROP]),
        ttl=st.sampled_from([None, None, "300ms", "2s"]),
        max_dead=st.sampled_from([1, 2, 100]),
        max_dead_age=st.sampled_from(["2s", "11d13h46m40s"]),
        with_bodies=st.sampled_from([True, False]),
    )
    def begin(self, lease_s: int, with_bodies: bool, **settings: Any) -> None:
        self.with_bodies = with_bodies
        self.topic = Topic("t", self.type, lease=timedelta(seconds=lease_s), **settings, **self.definition)
        self.send_call = sends.send_calls(self.topic)  # one sender: it makes scores with the age that it expects
        self.keys = slot_keys("t", 0)
        self.client.flushdb()
        self.model = self.of_topic(self.topic, T0)
        self.latest_ms = 0
        self.passed_ms = 0
        self.begun: dict[int, int] = {}
        self.epoch = 0
        self.handed: list[Claimed] = []
        self.hands: list[dict[bytes, int]] = [{}, {}]
        self.owed: set[bytes] = set()
        self._set_clock(T0)

    # time and owners

    @rule(ms=st.sampled_from([0, 0, 1, 250, 749, 1_000, 1_000, 2_000, 4_000, -1, -1_500, 90_000, -90_000]))
    def advance(self, ms: int) -> None:
        """Move the clock by so much, or with 0 to where something next becomes due or a lease is just not over."""
        self._set_clock(self.model.now_ms + ms if ms else self._next_moment())

    def _next_moment(self) -> int:
        slot, now_ms = self.model.slot, self.model.now_ms
        times = [score for score in slot.store.values() if self.type.timed]
        times += [self.model.clock.ends_ms(score) - last for score in slot.prepare.values() for last in (1, 0)]
        times += [score // 1000 * 1000 for score in slot.retry.values()]
        if self.topic.ttl_ms is not None:
            begun = slot.store if self.type.timed else slot.born
            times += [when_ms + self.topic.ttl_ms + 1 for when_ms in begun.values()]
        return min((time for time in times if time > now_ms), default=now_ms)

    @precondition(lambda self: self.handed and self.epoch < 2)
    @rule()
    def take_over(self) -> None:
        """A newer owner has the slot from its next claim on; the one before is refused."""
        older = self._owner()
        self.epoch += 1
        self._claim(0, 0)
        tokens = [(claimed.content, claimed.claim_score) for claimed in self.handed[-1:]]
        nacks = [Nack(*token) for token in tokens]
        for call in (
            claim_slot(self.topic, 0, 10, owner=older),
            settle_slot(self.topic, 0, Outcomes(tokens), older),
            with_hints(settle_slot(self.topic, 0, Outcomes(nacks=nacks), older)),
            claiming.extend(self.topic, 0, tokens, older),
        ):
            assert type(self.connections.run_many([call])[0]) is FencedError

    # sending

    @rule(batch=messages, detailed=st.booleans())
    def send(self, batch: list[tuple[int, int, bytes | None]], detailed: bool) -> None:
        encoded = [
            EncodedMessage(0, self._content(index), self._value(choice), body if self.with_bodies else None)
            for index, choice, body in batch
        ]
        result = self._both(
            with_hints(self.send_call(0, encoded, detailed)),
            lambda: self.model.send(encoded, detailed),
        )
        if result is not None:
            self.owed.update(message.content for message in encoded)
            if result.dropped:
                self.owed &= self.model.slot.store.keys() | self.model.slot.retry.keys()

    @rule(batch=messages, consumer=st.integers(0, 1))
    def send_and_claim(self, batch: list[tuple[int, int, bytes | None]], consumer: int) -> None:
        """Send, and claim what is due next: as rules of their own the two seldom meet in a history."""
        self.send(batch, False)
        self.advance(0)
        self._claim(10, consumer)

    def _value(self, choice: int) -> int:
        """What a send takes: its score, but of some fixed times the delay."""
        score = self._score(choice)
        return self.model.now_ms - score if self.type is TopicType.FIXED_TIME and choice in (1, 3) else score

    def _score(self, choice: int) -> int:
        match self.type:
            case TopicType.RANGE_MERGE:
                return (1, 1, 250, 1_000, LONGEST_DELAY_MS)[choice]
            case TopicType.PRIORITY:
                low, high = self.topic.priorities
                return (low, low + 1, low + 1, high - 1, high)[choice]
            case _:
                return self.model.now_ms + (1, 250, 1_000, LONGEST_DELAY_MS, 0)[choice]

    # claiming and settling: what is handed out and never settled stands for a crash

    @rule(bounds=claims, settled=settlements)
    def claim(self, bounds: tuple[int, int, int, int | None], settled: list[tuple[int, str]]) -> None:
        """Claim, at once, a little later, or with 0 where something next becomes due or a lease is just not over."""
        limit, sweep_limit, consumer, after_ms = bounds
        if after_ms is not None:
            self.advance(after_ms)
        self._claim(limit, consumer, self._acks(settled), self._nacks(settled), sweep_limit=sweep_limit)

    @precondition(lambda self: self.hands[0] or self.hands[1])
    @rule(limit=st.integers(0, 2), consumer=st.integers(0, 1))
    def claim_when_all_is_done(self, limit: int, consumer: int) -> None:
        """Ack all that a consumer holds, claim by claim without names. It must not hit what the other one holds."""
        whole = [(score, number) for score, number in Counter(self.hands[consumer].values()).items()]
        self._claim(limit, consumer, whole=whole)

    def _claim(
        self,
        limit: int,
        consumer: int,
        acks: Sequence[Ack] = (),
        nacks: Sequence[Nack] = (),
        whole: Sequence[WholeClaim] = (),
        sweep_limit: int = 256,
    ) -> None:
        held, stored = dict(self.model.slot.prepare), set(self.model.slot.store)
        outcomes, owner = Outcomes(acks, nacks, whole), self._owner()
        parts = [*self._other_parts(consumer), ClaimPart(0, limit, outcomes, owner)]
        *others, reply = self.connections.run(claim_slots(self.topic, parts, sweep_limit=sweep_limit))
        assert isinstance(reply, ClaimReply)
        assert [isinstance(other, ClaimReply) and other.messages for other in others] == [()] * len(others)
        expected = self.model.claim(limit, owner, acks=acks, nacks=nacks, whole=whole, sweep_limit=sweep_limit)
        assert reply._replace(next_due_ms=expected.next_due_ms) == expected
        at_once = 0 < reply.next_due_ms <= reply.now_ms
        if 0 < expected.next_due_ms <= reply.now_ms:
            assert at_once
        else:  # whoever reached the limit need not know whether there is more
            assert reply.next_due_ms == expected.next_due_ms or (at_once and len(reply.messages) == limit)
        self._done(held, consumer, acks, nacks, whole, reply.unmatched)
        if self.topic.ttl is not None:
            self.owed -= stored - self.model.slot.store.keys()  # too old, if it was not claimed
        self._begin(claimed.claim_score for claimed in reply.messages)
        for claimed in reply.messages:
            for hand in self.hands:
                score = hand.pop(claimed.content, None)
                assert score is None or self._is_over(score), f"{claimed.content!r} is in two hands at once"
            self.hands[consumer][claimed.content] = claimed.claim_score
            self.owed.discard(claimed.content)
        self.handed += reply.messages

    def _other_parts(self, consumer: int) -> list[ClaimPart]:
        """Return what a consumer claims from other slots, which are empty, by the same call."""
        del consumer
        return []

    def _begin(self, claim_scores: Iterable[int]) -> None:
        """Note when leases began: by the time that has passed, whatever the clock says. Stamps never come again."""
        stamps = {score // 1000 for score in claim_scores}
        assert len(stamps) <= 1
        assert stamps.isdisjoint(self.begun), "a stamp was given twice"
        self.begun.update(dict.fromkeys(stamps, self.passed_ms))

    def _is_over(self, claim_score: int) -> bool:
        return self.begun[claim_score // 1000] + self.topic.lease_ms < self.passed_ms

    @precondition(lambda self: self.handed)
    @rule(settled=settlements, consumer=st.integers(0, 1), in_all=st.booleans())
    def settle(self, settled: list[tuple[int, str]], consumer: int, in_all: bool) -> None:
        """Settle without a claim: what any consumer was handed by name, or all that one holds as whole claims."""
        acks, nacks = (), ()
        whole = list(Counter(self.hands[consumer].values()).items()) if in_all else []
        if not in_all:
            acks, nacks = self._acks(settled), self._nacks(settled)
        held, owner = dict(self.model.slot.prepare), self._owner()
        call = settle_slot(self.topic, 0, Outcomes(acks, nacks, whole), owner)
        if consumer:  # the second one settles in several slots at once, of which the others have nothing of it
            settle = claiming.settlements(self.topic)
            call = settle.joined([settle(1, STALE, owner), call, settle(1, Outcomes(), owner)]).then(self._of_slot_0)
        reply = self._both(with_hints(call), lambda: self.model.settle(acks, nacks, whole, owner))
        assert reply is not None
        self._done(held, consumer, acks, nacks, whole, reply.unmatched)

    def _of_slot_0(self, replies: Sequence[SettleReply | RmqError]) -> SettleReply:
        before, reply, after = replies
        assert (before, after) == (SettleReply((b"y", b"x")), ALL_SETTLED)
        assert read_state(self.client, slot_keys("t", 1)).totals == {}
        assert isinstance(reply, SettleReply), reply
        return reply

    @precondition(lambda self: self.handed)
    @rule(picked=picks)
    def extend(self, picked: list[int]) -> None:
        claims = self._tokens(picked)
        reply = self._both(
            claiming.extend(self.topic, 0, claims, self._owner()), lambda: self.model.extend(claims, self._owner())
        )
        assert reply is not None
        self._begin(score for score in reply.claim_scores if score is not None)
        for (content, claim_score), renewed in zip(claims, reply.claim_scores, strict=True):
            if renewed is not None:
                self.handed.append(Claimed(content, self._store_score(content, claim_score), renewed, None))
                for hand in self.hands:
                    if hand.get(content) == claim_score:
                        hand[content] = renewed

    def _tokens(self, picked: Iterable[int]) -> list[Ack]:
        """Deliveries of any age, first those in flight, then what was settled, expired, or claimed by another since."""
        prepare = self.model.slot.prepare
        known = sorted(self.handed, key=lambda each: prepare.get(each.content) == each.claim_score)
        chosen = [known[-1 - pick % len(known)] for pick in picked if known]
        return list(dict.fromkeys((claimed.content, claimed.claim_score) for claimed in chosen))

    def _acks(self, settled: list[tuple[int, str]]) -> list[Ack]:
        return self._tokens(pick for pick, verb in settled if verb == "ack")

    def _nacks(self, settled: list[tuple[int, str]]) -> list[Nack]:
        nacks: list[Nack] = []
        for pick, verb in settled:
            for content, claim_score in self._tokens([pick] if verb != "ack" else []):
                if verb == "spare in 700 ms" and not self.topic.max_retries:  # as consumers do
                    verb = "release"
                number = DELAYS_MS.get(verb, 0)
                if verb == "release":
                    number = self._store_score(content, claim_score)
                nacks.append(Nack(content, claim_score, verb.split()[0], number, "ValueError", 'no "é"'))
        return nacks

    def _store_score(self, content: bytes, claim_score: int) -> int:
        return next(
            claimed.store_score
            for claimed in reversed(self.handed)
            if (claimed.content, claimed.claim_score) == (content, claim_score)
        )

    def _owner(self) -> Owner:
        return Owner(self.epoch, "zk") if self.epoch else claiming.NO_OWNER

    def _done(
        self,
        held: dict[bytes, int],
        consumer: int,
        acks: Sequence[Ack],
        nacks: Sequence[Nack],
        whole: Sequence[WholeClaim],
        unmatched: Sequence[int],
    ) -> None:
        """Note what was settled, of what the slot had in flight before."""
        self._settled(acks)
        self._settled([(nack.content, nack.claim_score) for nack in nacks])
        for done in {score for score, _ in whole} - set(unmatched):
            contents = {content for content, score in held.items() if score == done}
            assert contents <= self.hands[consumer].keys(), "acked what another consumer holds"
            self._settled([(content, done) for content in contents])

    def _settled(self, tokens: Iterable[Ack]) -> None:
        for content, claim_score in tokens:
            for hand in self.hands:
                if hand.get(content) == claim_score:
                    del hand[content]

    # by content, and the dead

    @rule(picked=some, choice=st.sampled_from([*range(5), None]))
    def cancel_or_reschedule(self, picked: list[int], choice: int | None) -> None:
        names = self._names(picked)
        if choice is not None:
            kind, value = self._new_score(choice)
            call = with_hints(control.reschedule(self.topic, 0, names, (kind, value)))
            self._both(call, lambda: self.model.reschedule(names, kind, value))
            return
        answers = self._both(control.cancel(self.topic, 0, names), lambda: self.model.cancel(names))
        for name, answer in zip(names, answers or (), strict=True):
            if answer is ControlResult.DONE:
                self.owed.discard(name)

    @rule(picked=some)
    def promote(self, picked: list[int]) -> None:
        names = self._names(picked)
        self._both(with_hints(control.promote(self.topic, 0, names)), lambda: self.model.promote(names))
        for name in names:
            found = self.connections.run(viewing.find(self.topic, 0, name))
            assert self.model.find(name) == (
                found.stored and found.stored.score,
                found.in_flight and found.in_flight.score,
                found.waiting and found.waiting.score,
                found.dead and found.dead.died_ms,
            )

    @rule(paused=st.sampled_from([False, False, False, True]))
    def pause(self, paused: bool) -> None:
        self._both(with_hints(control.pause(self.topic, 0, paused)), lambda: self.model.pause(paused))

    @rule(place=st.sampled_from(["store", "retry"]), limit=st.sampled_from([0, 1, 1, 10]))
    def purge_backlog(self, place: str, limit: int) -> None:
        call = control.purge_backlog(self.topic, 0, place, limit)
        if self._both(call, lambda: self.model.purge_backlog(place, limit)):
            self.owed &= self.model.slot.store.keys()

    @precondition(lambda self: self.model.slot.dead)
    @rule(
        picked=some,
        choice=score_choices,
        bounds=st.sampled_from([*product([False, True], [1, 10])]),
        age=st.sampled_from([None, None, 0, 1]),
    )
    def redrive(self, picked: list[int], choice: int, bounds: tuple[bool, int], age: int | None) -> None:
        (kind, value), (overwrite, limit) = self._new_score(choice), bounds
        names = self._names(picked) or self.model.longest_dead(limit)
        dead = set(self.model.slot.dead)
        # None: whenever they died; 0: when they did; 1: at another time, so that none is meant
        died_ms = None if age is None else [self.model.slot.dead.get(name, 0) - age for name in names]
        call = dead_.redrive(
            self.topic,
            0,
            (kind, value),
            overwrite=overwrite,
            contents=names,
            died_ms=died_ms,
        )
        self._both(
            with_hints(call),
            lambda: self.model.redrive(names, kind, value, overwrite=overwrite, died_ms=died_ms),
        )
        self.owed |= dead - self.model.slot.dead.keys()

    @precondition(lambda self: self.model.slot.dead)
    @rule(picked=some, limit=st.sampled_from([1, 10]))
    def purge(self, picked: list[int], limit: int) -> None:
        names = self._names(picked) or self.model.longest_dead(limit)
        self._both(dead_.purge_dead(self.topic, 0, names), lambda: self.model.purge(names))

    def _content(self, index: int) -> bytes:
        return self.contents[index % len(self.contents)]

    def _names(self, picked: list[int]) -> list[bytes]:
        """Return contents; one may stand there twice."""
        return list(map(self._content, picked))

    def _new_score(self, choice: int) -> tuple[str, int]:
        kinds = {TopicType.RANGE_MERGE: "after", TopicType.PRIORITY: "priority", TopicType.FIXED_TIME: "at"}
        return kinds[self.type], self._score(choice)

    # what must hold

    @invariant()
    def all_keys_are_those_of_the_model(self) -> None:
        type(self).steps += 1
        state = read_state(self.client, self.keys, self.model.merges)
        assert state == self.model.state()
        assert state.clock == self.model.state().clock
        assert state.unaccounted == 0
        assert state.orphans == {}

    def teardown(self) -> None:
        """Every accepted send is followed by a delivery: a good worker can empty the slot whatever happened."""
        if not hasattr(self, "model"):
            return
        self._both(with_hints(control.pause(self.topic, 0, False)), lambda: self.model.pause(False))
        self.epoch += 1
        for _ in range(3 * len(CONTENTS)):
            self._set_clock(max(self.model.now_ms, self.latest_ms) + LONGEST_DELAY_MS + 4_000)
            acks = self._tokens(range(len(self.handed)))
            reply = self.connections.run(claim_slot(self.topic, 0, 10, owner=self._owner(), outcomes=Outcomes(acks)))
            self.owed -= {claimed.content for claimed in reply.messages}
            self.handed = list(reply.messages)
            if not reply.messages and reply.next_due_ms == 0:
                break
        state = read_state(self.client, self.keys)
        assert not state.store | state.prepare | state.retry, "the slot can't be drained"
        if self.topic.ttl is None:  # else it may have died of age on the way
            assert not self.owed, "accepted and never delivered"

    def _both(self, call: Call[T], modelled: Callable[[], T]) -> T | None:
        """Carry out a call on both sides and compare the answers; None when both refuse it alike."""
        try:
            expected = modelled()
        except RmqError as error:
            expected = type(error)
        answer = self.connections.run_many([call])[0]
        if isinstance(expected, type):
            assert type(answer) is expected
            return None
        assert not isinstance(answer, Exception), answer
        assert answer == expected
        return answer

    def _set_clock(self, now_ms: int) -> None:
        self.passed_ms += max(0, now_ms - self.model.now_ms)
        self.model.now_ms = now_ms
        self.latest_ms = max(self.latest_ms, now_ms)
        self.client.set(CLOCK_KEY, now_ms)
