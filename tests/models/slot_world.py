"""One slot, two consumers, and all that a small alphabet of calls and mishaps can make of them.

A state is the model of `tests/stateful/model.py`, what each consumer knows, and what is owed to those that sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rmq import Topic, TopicType
from rmq.errors import FixedTimePassedError
from tests.stateful.clock import SlotClock
from tests.stateful.model import Model
from tests.support.core import NO_OWNER, Call, EncodedMessage, Nack, Outcomes, ages_for, claims, sends
from tests.support.one_slot import claim_slot, settle_slot
from tests.support.slots import T0, SlotState, with_hints

TICK_MS = 1_000
"""The step of time, and the lease: in the first step after a claim its lease still runs, in the second it is over."""

_PLACES = ("store", "prepare", "retry", "dead", "body", "error", "reason", "dead_body")
"""What a slot of these topics has; the other keys stay empty."""


class Token(NamedTuple):
    """What a consumer knows of a delivery.

    Attributes:
        score: The claim score that settles it.
        begun_ms: When its lease began.
        at_work: Whether the consumer may be working on it: it has sent no outcome.
    """

    score: int
    begun_ms: int
    at_work: bool = True


class Played(NamedTuple):
    """One call of a script: what is called on which state, and what has to come of it.

    Attributes:
        name: The call in words that are the same for all states that look alike.
        before: The slot before it.
        call: The call.
        reply: What the model answers, or the error that refuses it.
        after: The slot after it.
        limit: Most messages of a claim.
    """

    name: str
    before: Model
    call: Call[Any]
    reply: Any
    after: Model
    limit: int = 0


@dataclass
class World:
    """A state of the search.

    Attributes:
        model: The slot.
        hands: For each consumer: content -> what it knows of its last delivery.
        owed: Content -> `stored`: sent, and not claimed since; `flying`: claimed since, and not acked.
        lost: A send whose reply was lost, and that is still to be repeated.
    """

    model: Model
    hands: tuple[dict[bytes, Token], ...]
    owed: dict[bytes, str]
    lost: EncodedMessage | None = None

    def copy(self) -> World:
        """Return a state to be changed. By hand: half the time of a search goes into copies."""
        model, slot, clock = Model.__new__(Model), SlotState.__new__(SlotState), SlotClock.__new__(SlotClock)
        vars(model).update(vars(self.model))
        vars(slot).update(vars(self.model.slot))
        vars(slot).update({name: getattr(slot, name).copy() for name in _PLACES}, hints=[])
        vars(clock).update(vars(self.model.clock))
        model.slot, model.clock, model.totals = slot, clock, Counter()
        dict.update(model.totals, self.model.totals)
        return replace(self.beside(), model=model)

    def beside(self) -> World:
        """Return a state with the same slot, where consumers know something else."""
        return World(self.model, tuple(map(dict, self.hands)), dict(self.owed), self.lost)


class SlotAlphabet:
    """What can happen to a slot: sends, claims, outcomes, lost replies and time.

    Args:
        topic: The definition; its lease is one tick.
        contents: The contents.
        consumers: How many consumers there are.

    Attributes:
        played: What the slot looks like to a script, and what is called -> the first such call of the search.
    """

    def __init__(self, topic: Topic, contents: tuple[bytes, ...] = (b"a", b"b"), consumers: int = 2) -> None:
        self.topic, self.contents, self.consumers = topic, contents, consumers
        self._first, self._last, self._several = contents[0], contents[-1], len(contents) > 1
        self.timed = topic.type.timed
        self.scale = 1 if self.timed else ages_for(topic.max_priority).scale
        self._send_call = sends.send_calls(topic)
        self.played: dict[Hashable, Played] = {}
        self._here: Hashable = None

    def first(self) -> World:
        return World(Model(self.topic, T0), tuple({} for _ in range(self.consumers)), {})

    # what can happen

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Return each thing that can happen next, and the state after it."""
        self._here = self.slot_key(world.model)
        for content in self.contents:
            several = content == self._first and (not self.timed or self._several)
            for urgent in (False, True) if several else (False,):
                message = self._message(world.model, content, urgent)
                yield from self._send(world, message, f"send {_text(content)}{' urgent' * urgent}")
        if world.lost is None:
            message = self._message(world.model, self._first, False)
            for word, after in self._send(world, message, f"send {_text(message.content)}"):
                after.lost = message
                yield f"{word}, reply lost", after
        else:
            for word, after in self._send(world, world.lost, f"send {_text(world.lost.content)} again"):
                after.lost = None
                yield word, after
        if self._may_stamp(world):
            for limit in range(1, len(self.contents) + 1):
                yield from self._claim(world, limit)
        yield from self._sweep(world)
        for number, hand in enumerate(world.hands):
            for content, token in hand.items():
                yield from self._settle(world, number, content, token)
        after = world.copy()
        after.model.now_ms += TICK_MS
        yield "a second passes", after

    def _may_stamp(self, world: World) -> bool:
        """At most two stamps in one millisecond: else there would be no end of states."""
        return world.model.clock.last <= world.model.now_ms

    def _message(self, model: Model, content: bytes, urgent: bool) -> EncodedMessage:
        """A message for the slot's type: one that is urgent has a body, too."""
        body = b"urgent" if urgent else None
        match self.topic.type:
            case TopicType.RANGE_MERGE:
                score = 500 if urgent else 1_500
            case TopicType.PRIORITY:
                score = self.topic.priorities[0] + (2 if urgent else int(content == self._last))
            case _:
                score = model.now_ms + (500 if urgent else 1_500)
        return EncodedMessage(0, content, score, body)

    def _play(self, played: Played) -> None:
        self.played.setdefault((self._here, played.name), played)

    def _send(self, world: World, message: EncodedMessage, word: str) -> Iterator[tuple[str, World]]:
        after = world.copy()
        try:
            reply: Any = after.model.send([message], True)
            after.owed[message.content] = "stored"
        except FixedTimePassedError:
            reply = FixedTimePassedError
        ahead = f" {message.value - world.model.now_ms} ms ahead" if self.topic.type is TopicType.FIXED_TIME else ""
        call = with_hints(self._send_call(0, [message], True))
        self._play(Played(word + ahead, world.model, call, reply, after.model))
        yield word + ahead, after

    def _claim(self, world: World, limit: int) -> Iterator[tuple[str, World]]:
        claimed = world.copy()
        reply = claimed.model.claim(limit, NO_OWNER)
        call = claim_slot(self.topic, 0, limit)
        self._play(Played(f"claim {limit}", world.model, call, reply, claimed.model, limit))
        for message in reply.messages:
            claimed.owed[message.content] = "flying"
        if reply.messages:
            yield f"a claim of {limit}, reply lost", claimed
        for number in range(self.consumers if reply.messages else 0):
            after = claimed.beside()
            for message in reply.messages:
                after.hands[number][message.content] = Token(message.claim_score, after.model.now_ms)
            yield f"consumer {number + 1} claims {limit}", after
        if not reply.messages:
            yield f"a claim of {limit} finds nothing", claimed

    def _sweep(self, world: World) -> Iterator[tuple[str, World]]:
        after = world.copy()
        reply = after.model.claim(0, NO_OWNER)
        self._play(Played("sweep", world.model, claim_slot(self.topic, 0, 0), reply, after.model))
        yield "a sweep", after

    def _settle(self, world: World, number: int, content: bytes, token: Token) -> Iterator[tuple[str, World]]:
        live = world.model.slot.prepare.get(content) == token.score
        who, what = f"consumer {number + 1}", f"{_text(content)}{'' if live else ' too late'}"
        for verb in ("ack", "nack", "nack for a second", *(("extend",) if self._may_stamp(world) else ())):
            done = world.copy()
            if verb == "extend":
                reply: Any = done.model.extend([(content, token.score)], NO_OWNER)
                call: Call[Any] = claims.extend(self.topic, 0, [(content, token.score)])
            elif verb == "ack":
                acks = [(content, token.score)]
                reply = done.model.settle(acks, [], [], NO_OWNER)
                call = settle_slot(self.topic, 0, Outcomes(acks))
                if live and done.owed.get(content) == "flying":
                    del done.owed[content]
            else:
                delay_ms = 0 if verb == "nack" else TICK_MS
                nacks = [Nack(content, token.score, "retry", delay_ms, "ValueError", "no")]
                reply = done.model.settle([], nacks, [], NO_OWNER)
                call = with_hints(settle_slot(self.topic, 0, Outcomes(nacks=nacks)))
            self._play(Played(f"{verb} {what}", world.model, call, reply, done.model))
            if verb == "extend":
                renewed = reply.claim_scores[0]
                if renewed is not None:
                    done.hands[number][content] = Token(renewed, done.model.now_ms, token.at_work)
                    yield f"{who} extends {what}", done
                continue
            for lost in (False, True):
                after = done.beside()
                if lost and live:
                    after.hands[number][content] = token._replace(at_work=False)
                    yield f"{who}: {verb} {what}, reply lost", after
                elif not lost:
                    del after.hands[number][content]
                    yield f"{who}: {verb} {what}", after

    # what is the same

    def slot_key(self, model: Model) -> Hashable:
        """What a script can tell from the slot, times relative to now: past ones count by their order only."""
        slot, now_ms, lease_ms = model.slot, model.now_ms, self.topic.lease_ms
        parts: list[Hashable] = []
        past: tuple[list[tuple[int, bytes]], ...] = ([], [], [])
        for content in self.contents:
            score, claim, retry = slot.store.get(content), slot.prepare.get(content), slot.retry.get(content)
            stored: Hashable = None
            if score is not None:
                if score <= self.topic.max_retries or (self.timed and score <= now_ms):
                    past[0].append((score, content))
                    stored = score if score <= self.topic.max_retries else "due"
                elif self.timed:
                    stored = score - now_ms
                else:
                    past[0].append((score, content))
                    stored = score // self.scale
            held: Hashable = None
            if claim is not None:
                age_ms = now_ms - claim // 1000
                held = (age_ms if age_ms <= lease_ms else "over", claim % 1000)
                past[1].append((claim // 1000, content))
            waits: Hashable = None
            if retry is not None:
                waits = (max(0, retry // 1000 - model.now_s), retry % 1000)
                past[2].append((retry // 1000, content))
            sides = (slot.body.get(content), content in slot.error, content in slot.dead, slot.dead_body.get(content))
            parts.append((stored, held, waits, sides))
        order = tuple(_order(place) for place in past)
        last = model.clock.last
        return tuple(parts), order, max(-1, last - now_ms) if last else None

    def key(self, world: World) -> Hashable:
        """What makes two states differ. Consumers do not differ from each other."""
        model = world.model
        hands: list[Hashable] = []
        for hand in world.hands:
            known: list[tuple[bytes, Hashable]] = []
            for content, token in hand.items():
                live = model.slot.prepare.get(content) == token.score
                known.append((content, token.at_work if live else "stale"))
            hands.append(tuple(sorted(known, key=_first)))
        lost: Hashable = None
        if world.lost is not None:
            fixed = self.topic.type is TopicType.FIXED_TIME
            lost = max(0, world.lost.value - model.now_ms) if fixed else True
        hands.sort(key=repr)
        return self.slot_key(model), tuple(hands), tuple(sorted(world.owed.items())), lost

    # what must hold

    def broken(self, world: World) -> str | None:
        """Return the promise that a state breaks."""
        model = world.model
        slot, now_ms = model.slot, model.now_ms
        working: dict[bytes, int] = {}
        for hand in world.hands:
            for content, token in hand.items():
                if not token.at_work or token.begun_ms + self.topic.lease_ms < now_ms:
                    continue
                if content in working:
                    return f"{_text(content)} is in two hands while both leases run"
                if slot.prepare.get(content) != token.score:
                    return f"{_text(content)} was taken from its consumer while its lease runs"
                working[content] = token.score
        for content, where in world.owed.items():
            kept = slot.store.keys() if where == "stored" else {*slot.store, *slot.prepare, *slot.retry, *slot.dead}
            if content not in kept:
                return f"{_text(content)} was accepted, is not acked, and is nowhere"
        state = replace(slot, totals=dict(model.totals))
        if state.unaccounted:
            return f"the accounts are wrong by {state.unaccounted}"
        return f"side entries without a message: {state.orphans}" if state.orphans else None


def _order(place: list[tuple[int, bytes]]) -> Hashable:
    """Which of two comes first, or that they are equal."""
    if len(place) < 2:
        return None
    (left, _), (right, _) = place
    return (left > right) - (left < right)


def _first(pair: tuple[bytes, Hashable]) -> bytes:
    return pair[0]


def _text(content: bytes) -> str:
    return content.decode()
