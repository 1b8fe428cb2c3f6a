"""What one slot of a topic promises, in plain Python: DESIGN.md sections 5 to 8 with dictionaries for keys.

Written from the contract, without a look at performance. Each method takes what a call takes, returns what the call
returns, and raises the error that refuses it before it changes anything. Equal scores go in the order that Redis
happens to have, which is no promise (pitfall 17), but makes the comparison exact. With ties `any`, stamps decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rmq import ControlResult, Owner, Redriven, SendResult, Ties, Topic, TopicType
from rmq.errors import BacklogFullError, FencedError, FixedTimePassedError
from tests.stateful.clock import SlotClock
from tests.stateful.tiers import chosen, in_order
from tests.support.claims import Claimed
from tests.support.core import (
    Ack,
    ClaimReply,
    EncodedMessage,
    ExtendReply,
    Nack,
    SettleReply,
    WholeClaim,
    ages_for,
)
from tests.support.slots import Record, SlotState

AGES_FROM_MS = 1_735_689_600_000
"""2025-01-01: ages of PRIORITY topics count from there."""


class Model:
    """One slot.

    Args:
        topic: Its definition.
        now_ms: The time; set it to let time pass.
    """

    def __init__(self, topic: Topic, now_ms: int) -> None:
        self.topic = topic
        self.now_ms = now_ms
        self.slot = SlotState()
        self.epoch = 0
        self.totals: Counter[str] = Counter()
        self.paused = False
        self.clock = SlotClock(topic.lease_ms)

    @property
    def now_s(self) -> int:
        return self.now_ms // 1000

    def state(self) -> SlotState:
        """What the keys must hold."""
        owner = {"epoch": str(self.epoch), "ensemble": "zk"} if self.epoch else {}
        owner |= {"paused": "1"} if self.paused else {}
        totals = {name: n for name, n in self.totals.items() if n}
        return replace(self.slot, totals=totals, owner=owner, clock=self.clock.fields())

    # sending

    def send(self, messages: Sequence[EncodedMessage], detailed: bool) -> SendResult:
        store, kind = self.slot.store, self.topic.type
        due = [self.due_ms(message.value) for message in messages]
        if kind is TopicType.FIXED_TIME and min(due) <= self.now_ms:
            raise FixedTimePassedError("past")
        fresh = {message.content for message in messages} - store.keys()
        bound = self.topic.max_backlog_per_slot
        if bound and not self.topic.drops and fresh and len(store) + len(fresh) > bound:
            raise BacklogFullError("full")
        crowded = len(store) <= len(self.slot.prepare)
        # a due one at the head may hide in its twin's flight, so that later ones are what consumers wait for
        hidden = self.now_ms if kind.timed and self.slot.prepare else -1
        first = min((score for score in store.values() if score > hidden), default=None)
        outcomes: list[bool] = []
        for message, score in zip(messages, due, strict=True):
            outcomes.append(message.content not in store)
            if outcomes[-1] or kind is not TopicType.RANGE_MERGE:
                store[message.content] = self._aged(message.content, score)
            if outcomes[-1]:
                self.slot.body.pop(message.content, None)
            if message.body is not None:
                self.slot.body[message.content] = message.body
        new = sum(outcomes)
        self.totals.update(accepted=len(messages), merged=len(messages) - new)
        earliest = min(due) if kind.timed else 0
        if (new or kind is not TopicType.RANGE_MERGE) and (first is None or earliest < first or crowded):
            self.slot.hints.append(earliest)
        if self._ages:
            self.slot.born.update(dict.fromkeys((message.content for message in messages), self.now_ms))
        dropped = self._drop_excess() if self.topic.drops else 0
        return SendResult(new, len(messages) - new, tuple(outcomes) if detailed else (), dropped=dropped)

    def due_ms(self, value: int) -> int:
        """When a message is due; a value that is no time stays as it is."""
        if self.topic.type is TopicType.RANGE_MERGE:
            return self.now_ms + value
        return self.now_ms - value if value < 0 else value

    @property
    def _ages(self) -> bool:
        """Whether times of sending are kept, to tell what is too old."""
        return self.topic.ttl is not None and not self.topic.type.timed

    def _aged(self, content: bytes, value: int) -> int:
        """The score of a message that gets a due time or a priority: among equal priorities the oldest is first."""
        scale, unit_ms = ages_for(self.topic.max_priority).scale, ages_for(self.topic.max_priority).unit_ms
        if scale == 1:
            return value
        stored = self.slot.store.get(content, 0)
        youngest = scale - 1 - (self.now_ms - AGES_FROM_MS) // unit_ms
        return value * scale + (stored % scale if stored >= scale else youngest)

    def _fresh(self) -> list[bytes]:
        """What was never delivered, in store, lowest score first."""
        return [c for c in _lowest_first(self.slot.store) if self.slot.store[c] > self.topic.max_retries]

    def _drop_excess(self) -> int:
        excess = max(0, len(self.slot.store) - self.topic.max_backlog_per_slot)
        order = self._fresh()[::-1] if self.topic.type.timed else self._fresh()
        for content in order[:excess]:
            self._leave_store(content)
            self.slot.born.pop(content, None)
        self.totals["dropped"] += len(order[:excess])
        return len(order[:excess])

    def _leave_store(self, content: bytes) -> None:
        self._drop_value(content, "dropped", self.slot.store)
        del self.slot.store[content]
        if content not in self.slot.prepare and content not in self.slot.retry:
            self.slot.body.pop(content, None)
            self.slot.error.pop(content, None)

    def _expire(self, limit: int) -> tuple[int, bool]:
        """What is too old dies, the oldest first. Returns how many, and whether more may have to."""
        ttl_ms = self.topic.ttl_ms
        if ttl_ms is None:
            return 0, False
        ages = self.slot.born if self._ages else {c: self.slot.store[c] for c in self._fresh()}
        old = [c for c in _lowest_first(ages) if ages[c] < self.now_ms - ttl_ms]
        for _ in range(15):  # whole pages of what is not there any more are passed over
            if len(old) < limit or any(content in self.slot.store for content in old[:limit]):
                break
            for content in old[:limit]:
                del self.slot.born[content]
            old = old[limit:]
        old = old[:limit]
        expired = [content for content in old if content in self._fresh()]
        for content in expired:
            self.totals["merged"] += content in self.slot.dead
            self.slot.dead[content] = self.now_ms
            self._die_with_value(content, aged=True)
            now = str(self.now_ms)
            message = f"not delivered within its time to live of {ttl_ms} ms"
            self.slot.reason[content] = {
                "first_ms": now, "last_ms": now, "type": "Expired", "message": message, "attempts": 0,
            }  # fmt: skip
            self._leave_store(content)
        for content in old:
            self.slot.born.pop(content, None)
        self.totals["ttl_expired"] += len(expired)
        return len(expired), len(old) == limit

    def _redrive_body(self, content: bytes, fresh: bool) -> None:
        """The body of a fresh copy is newer than that of the dead."""
        body = self.slot.dead_body.get(content)
        if not fresh:
            self.slot.body.pop(content, None)
        if body is not None:
            self.slot.body.setdefault(content, body)

    # values, which topics with `merge=` keep elsewhere: see merging_model

    @property
    def merges(self) -> bool:
        """Whether the topic has `merge=`."""
        return self.topic.merge is not None

    def _drop_value(self, content: bytes, why: str, place: dict[bytes, int]) -> None:
        """The value of what leaves a place for good goes; here it is found without that."""

    def _redrive_value(self, content: bytes) -> None:
        """A redriven value goes to store; here `_redrive_body` brings it there."""

    # claiming and settling

    def claim(
        self,
        limit: int,
        owner: Owner,
        acks: Iterable[Ack] = (),
        nacks: Iterable[Nack] = (),
        whole: Iterable[WholeClaim] = (),
        sweep_limit: int = 256,
    ) -> ClaimReply:
        self._fence(owner)
        plain = not self.slot.body and not self.slot.error and not self.merges
        stale = [nack.content for nack in nacks if not self._nack(nack)]
        stale += [content for content, claim_score in acks if not self._ack(content, claim_score)]
        unmatched = [whole_claim[0] for whole_claim in whole if not (plain and self._ack_whole(*whole_claim))]
        known, clock = self.clock, self.clock.at(self.now_ms)
        held = dict(self.slot.prepare)
        clock.settle(self.now_ms, min(held.values(), default=None))
        moved = (clock.lead_ms, clock.skew_ms) != (known.lead_ms, known.skew_ms) or self.now_ms < known.seen_ms
        self.clock = clock
        swept, more = self._sweep(sweep_limit)
        _, more_old = self._expire(sweep_limit)
        more = more or more_old
        self._trim_dead()
        stamp = clock.draw(self.now_ms, max(held.values(), default=0), bool(held))
        take = self._unexpired if more_old else self._chosen
        due = [] if self.paused else take(limit, stamp)
        taken = [self._take(content, stamp) for content in due]
        if taken or moved:
            clock.note(self.now_ms, stamp if taken else None)
        else:
            self.clock = known
        next_due = self.now_ms if more or (self._claimable() and not self.paused) else self._next_due()
        return ClaimReply(self.now_ms, next_due, 0, swept, tuple(stale), tuple(taken), tuple(unmatched))

    def settle(
        self, acks: Sequence[Ack], nacks: Sequence[Nack], whole: Sequence[WholeClaim], owner: Owner
    ) -> SettleReply:
        self._fence(owner)
        plain = not self.slot.body and not self.slot.error and not self.merges
        stale: list[bytes] = []
        back = False
        for nack in nacks:
            before = self.slot.store.get(nack.content, 0)
            if not self._nack(nack):
                stale.append(nack.content)
            elif nack.verb == "release" or (nack.verb == "retry" and nack.claim_score % 1000 and not nack.number):
                back = True
            elif self.slot.store.get(nack.content, 0) < before:
                back = True
        if nacks:
            self._trim_dead()
        stale += [content for content, claim_score in acks if not self._ack(content, claim_score)]
        unmatched = [claim[0] for claim in whole if not (plain and self._ack_whole(*claim))]
        if back:
            self.slot.hints.append(0)
        return SettleReply(tuple(stale), tuple(unmatched))

    def extend(self, claims: Sequence[Ack], owner: Owner) -> ExtendReply:
        self._fence(owner)
        scores: list[int | None] = []
        clock = self.clock.at(self.now_ms)
        stamp = clock.draw(self.now_ms, max(self.slot.prepare.values(), default=0), True)
        for content, claim_score in claims:
            mine = self.slot.prepare.get(content) == claim_score
            if mine:
                self.slot.prepare[content] = stamp * 1000 + claim_score % 1000
            scores.append(self.slot.prepare[content] if mine else None)
        if any(scores):
            clock.note(self.now_ms, stamp)
            self.clock = clock
        return ExtendReply(self.now_ms, tuple(scores))

    def _fence(self, owner: Owner) -> None:
        if owner.epoch < self.epoch:
            raise FencedError("older epoch")
        self.epoch = owner.epoch

    def _claimable(self) -> list[bytes]:
        """What may be delivered now, in order: due, and in nobody's hands."""
        order = _lowest_first(self.slot.store)
        if not self.topic.type.timed:
            order = order[::-1]
        not_before = self.now_ms if self.topic.type.timed else float("inf")
        return [c for c in order if c not in self.slot.prepare and self.slot.store[c] <= not_before]

    def _chosen(self, limit: int, stamp: int) -> list[bytes]:
        """What a claim takes; where ties are `any` its stamp decides between equal scores."""
        if self.topic.ties is Ties.ANY:
            return chosen(self.slot.store, self.slot.prepare, limit, stamp, self.topic.max_retries)
        return self._claimable()[:limit]

    def _unexpired(self, limit: int, stamp: int) -> list[bytes]:
        """What a claim takes that could not bury all that is too old: the rest; where ties are `any`, by its stamp."""
        ages = self.slot.born if self._ages else self.slot.store
        before = self.now_ms - (self.topic.ttl_ms or 0)
        old = {content for content in self._fresh() if ages.get(content, before) < before}
        free = [content for content in self._claimable() if content not in old]
        if self.topic.ties is Ties.ANY:
            free = [content for content in in_order(self.slot.store, stamp) if content in free]
        return free[:limit]

    def _take(self, content: bytes, stamp: int) -> Claimed:
        score = self.slot.store.pop(content)
        self.slot.born.pop(content, None)
        left = score - 1 if score <= self.topic.max_retries else self.topic.max_retries
        self.slot.prepare[content] = stamp * 1000 + left
        if self.slot.retry.pop(content, None) is not None:
            self.totals["merged"] += 1
        self.totals["delivered"] += 1
        return Claimed(content, score, self.slot.prepare[content], self.slot.body.get(content))

    def _next_due(self) -> int:
        """When there is something to do, once all that is claimable was claimed; 0 for never."""
        times = [due // 1000 * 1000 for due in self.slot.retry.values()]
        times += [self.clock.ends_ms(claim) for claim in self.slot.prepare.values()]
        if self.topic.type.timed and not self.paused:
            times += [due for due in self.slot.store.values() if due > self.now_ms]
        return min(times, default=0)

    def _ack(self, content: bytes, claim_score: int) -> bool:
        if self.slot.prepare.get(content) != claim_score:
            return False
        del self.slot.prepare[content]
        self.slot.error.pop(content, None)
        if content not in self.slot.store:
            self.slot.body.pop(content, None)
        self.totals["acked"] += 1
        return True

    def _ack_whole(self, claim_score: int, number: int) -> bool:
        """Ack all that was claimed with this score, if that is so many: no other claim has it."""
        contents = [content for content, score in self.slot.prepare.items() if score == claim_score]
        if len(contents) != number:
            return False
        return all(self._ack(content, claim_score) for content in contents)

    def _nack(self, nack: Nack) -> bool:
        content, left = nack.content, nack.claim_score % 1000
        if self.slot.prepare.get(content) != nack.claim_score:
            return False
        if nack.verb == "release":
            self.totals["released"] += 1
            if self._put_back(content, self.slot.store, nack.number) and self._ages:
                self.slot.born[content] = self.now_ms
            return True
        self._fail(content, left, nack.error_type, nack.error_message)
        if nack.verb == "spare":
            left = max(1, min(left + 1, self.topic.max_retries))
        if nack.verb == "bury" or left == 0:
            self._bury(content, left)
        elif nack.number:
            due_s = -(-(self.now_ms + nack.number) // 1000)
            self._roll_back(content, self.slot.retry, due_s * 1000 + left)
        else:
            self._roll_back(content, self.slot.store, left)
        return True

    def _roll_back(self, content: bytes, place: dict[bytes, int], score: int) -> None:
        if self._put_back(content, place, score):
            self.totals["retried"] += 1

    def _put_back(self, content: bytes, place: dict[bytes, int], score: int) -> bool:
        """Out of flight; a fresh copy in store stands as it is."""
        del self.slot.prepare[content]
        fresh = content in self.slot.store
        if fresh or place is self.slot.store:
            self._value_back(content)
        if fresh:
            self.totals["merged"] += 1
            self._keep_failure(content)
            return False
        place[content] = score
        return True

    def _value_back(self, content: bytes) -> None:
        """Its value goes back to store: here it never left."""

    def _fail(self, content: bytes, left: int, kind: str, message: str) -> None:
        now = str(self.now_ms)
        earlier: Record = self.slot.error.get(content, {})
        again = earlier.get("again")
        if left == self.topic.max_retries:
            if earlier:  # of a message before: it failed, and was sent again
                again = str(int(again or 0) + 1)
                self.totals["refailed"] += 1
            earlier = {}
        first = earlier.get("first_ms", now)
        self.slot.error[content] = {"first_ms": first, "last_ms": now, "type": kind, "message": message}
        if again is not None:
            self.slot.error[content]["again"] = again

    def _keep_failure(self, content: bytes) -> None:
        """A copy that was sent since has all its retries; that its content has failed is known until the ack."""
        if failure := self.slot.error.get(content):
            for name in ("claim", "merged"):
                failure.pop(name, None)

    def _bury(self, content: bytes, left: int) -> None:
        failure = self.slot.error.pop(content)
        del self.slot.prepare[content]
        if content in self.slot.store and not self.merges:
            self.slot.error[content] = failure
            self.totals.update(exhausted=1, merged=1)
            return
        self.totals.update(buried=1, merged=content in self.slot.dead)
        self.slot.dead[content] = self.now_ms
        self.slot.reason[content] = {**failure, "attempts": self.topic.max_retries - left + 1}
        self._die_with_value(content)

    def _die_with_value(self, content: bytes, *, aged: bool = False) -> None:
        """What dies takes its body along: from store where it is too old, else from flight."""
        self.slot.dead_body.pop(content, None)
        if content in self.slot.body:
            self.slot.dead_body[content] = self.slot.body[content] if aged else self.slot.body.pop(content)

    def _sweep(self, limit: int) -> tuple[int, bool]:
        """Oldest first, so many leases and so many retries. Returns how many, and whether more may be waiting."""
        prepare = self.slot.prepare
        expired = [c for c in _lowest_first(prepare) if self.clock.is_over(prepare[c], self.now_ms)][:limit]
        merged = str(self.totals["merged"])
        for content in expired:
            left = self.slot.prepare[content] % 1000
            attempt = self.topic.max_retries - left + 1
            message = f"delivery {attempt} was neither acked nor nacked within its lease"
            earlier: Record = self.slot.error.get(content, {}) if left < self.topic.max_retries else {}
            self._fail(content, left, "LeaseExpired", message)
            if left:
                claims = " ".join([str(self.slot.prepare[content]), *earlier.get("claim", "").split()][:8])
                self.slot.error[content] |= {"claim": claims, "merged": earlier.get("merged", merged)}
                self._roll_back(content, self.slot.store, left)
            else:
                self._bury(content, left)
        self.totals["expired"] += len(expired)
        due = [c for c in _lowest_first(self.slot.retry) if self.slot.retry[c] // 1000 <= self.now_s][:limit]
        for content in due:
            self._value_back(content)
            left = self.slot.retry.pop(content) % 1000
            if content in self.slot.store:
                self.totals["merged"] += 1
                self._keep_failure(content)
            else:
                self.slot.store[content] = left
        return len(expired) + len(due), limit in (len(expired), len(due))

    def _trim_dead(self) -> None:
        order = _lowest_first(self.slot.dead)
        too_old = [c for c in order if self.slot.dead[c] < self.now_ms - self.topic.max_dead_age_ms]
        too_many = len(order) - self.topic.max_dead_per_slot
        trimmed = order[: max(len(too_old), too_many, 0)]
        self._drop_dead(trimmed, "trimmed")
        self.totals["trimmed"] += len(trimmed)

    def _drop_dead(self, contents: Iterable[bytes], why: str) -> None:
        for content in contents:
            self._drop_value(content, why, self.slot.dead)
            del self.slot.dead[content]
            del self.slot.reason[content]
            self.slot.dead_body.pop(content, None)

    # by content

    def cancel(self, contents: Sequence[bytes]) -> list[ControlResult]:
        return [self._cancel(content) for content in contents]

    def _cancel(self, content: bytes) -> ControlResult:
        places = [place for place in (self.slot.store, self.slot.retry) if content in place]
        if not places:
            return self._absent(content)
        for place in places:
            self._drop_value(content, "cancelled", place)
            del place[content]
        self.slot.born.pop(content, None)
        self.totals["cancelled"] += len(places)
        if content not in self.slot.prepare:
            self.slot.body.pop(content, None)
            self.slot.error.pop(content, None)
        return ControlResult.DONE

    def reschedule(self, contents: Sequence[bytes], kind: str, value: int) -> list[ControlResult]:
        score = self._new_score(kind, value)
        answers: list[ControlResult] = []
        for content in contents:
            stored, waiting = content in self.slot.store, content in self.slot.retry
            if waiting:
                self._value_back(content)
            if stored or waiting:
                self.slot.store[content] = self._aged(content, score)
                if self._ages:
                    self.slot.born.setdefault(content, self.now_ms)
                self.slot.retry.pop(content, None)
                self.totals["merged"] += stored and waiting
            answers.append(ControlResult.DONE if stored or waiting else self._absent(content))
        self.slot.hints.append(score if self.topic.type.timed else 0)
        return answers

    def promote(self, contents: Sequence[bytes]) -> list[ControlResult]:
        answers = [self._promote(content) for content in contents]
        self.slot.hints.append(0)
        return answers

    def _promote(self, content: bytes) -> ControlResult:
        store, retry = self.slot.store, self.slot.retry
        if content not in store and content not in retry:
            return self._absent(content)
        if content in retry:
            self._value_back(content)
        if self.topic.type.timed:
            if content in store:
                store[content] = min(store[content], self.now_ms)
                if self.merges and retry.pop(content, None) is not None:
                    self.totals["merged"] += 1
            else:
                store[content] = retry.pop(content) % 1000
            return ControlResult.DONE
        others = [score for other, score in store.items() if other != content]
        if store.get(content, 0) <= max([self.topic.max_retries, *others]):
            highest = max([self.topic.max_retries, *store.values()])
            self.totals["merged"] += content in store and content in retry
            scale = ages_for(self.topic.max_priority).scale
            above = (highest // scale + 1) * scale + store.get(content, 0) % scale
            store[content] = above if above < 2**53 else highest + (1 if highest < 2**53 else 2)
            if self._ages:
                self.slot.born.setdefault(content, self.now_ms)
        elif content in retry:
            self.totals["merged"] += 1
        retry.pop(content, None)
        return ControlResult.DONE

    def pause(self, paused: bool) -> bool:
        changed, self.paused = self.paused is not paused, paused
        if not paused:
            self.slot.hints.append(0)
        return changed

    def purge_backlog(self, place: str, limit: int) -> int:
        zset = self.slot.store if place == "store" else self.slot.retry
        doomed = _lowest_first(zset)[:limit]
        for content in doomed:
            self._drop_value(content, "purged", zset)
            del zset[content]
            if place == "store":
                self.slot.born.pop(content, None)
            if not any(content in place for place in (self.slot.store, self.slot.prepare, self.slot.retry)):
                self.slot.body.pop(content, None)
                self.slot.error.pop(content, None)
        self.totals["purged"] += len(doomed)
        return len(doomed)

    def find(self, content: bytes) -> tuple[int | None, ...]:
        """Its scores in store, prepare, retry and dead."""
        places = (self.slot.store, self.slot.prepare, self.slot.retry, self.slot.dead)
        return tuple(place.get(content) for place in places)

    def _absent(self, content: bytes) -> ControlResult:
        return ControlResult.IN_FLIGHT if content in self.slot.prepare else ControlResult.ABSENT

    def _new_score(self, kind: str, value: int) -> int:
        if kind == "at" and value <= self.now_ms:
            raise FixedTimePassedError("past")
        return self.now_ms + value if kind == "after" else value

    # the dead

    def redrive(
        self,
        contents: Sequence[bytes],
        kind: str,
        value: int,
        *,
        overwrite: bool,
        died_ms: Sequence[int] | None = None,
    ) -> list[Redriven]:
        score = self._new_score(kind, value)
        sooner = False
        answers: list[Redriven] = []
        for index, content in enumerate(contents):
            found = self.slot.dead.get(content)
            if found is None or (died_ms is not None and died_ms[index] != found):
                answers.append(Redriven.ABSENT)
                continue
            fresh, before = content in self.slot.store, self.slot.store.get(content, 0)
            self._redrive_value(content)
            sooner = sooner or (not overwrite and self.slot.store.get(content, 0) < before)
            if overwrite or not fresh:
                self.slot.store[content] = self._aged(content, score)
                if not self.merges:
                    self._redrive_body(content, fresh)
                if self._ages:
                    self.slot.born[content] = self.now_ms
            self._drop_dead([content], "redriven")
            self.totals["merged" if fresh else "redriven"] += 1
            answers.append(Redriven.MERGED if fresh else Redriven.DONE)
        if {Redriven.DONE, Redriven.MERGED} & set(answers):
            self.slot.hints.append(score if self.topic.type.timed and not sooner else 0)
        return answers

    def purge(self, contents: Sequence[bytes]) -> int:
        doomed = [content for content in dict.fromkeys(contents) if content in self.slot.dead]
        self._drop_dead(doomed, "purged")
        self.totals["purged"] += len(doomed)
        return len(doomed)

    def longest_dead(self, limit: int) -> list[bytes]:
        return _lowest_first(self.slot.dead)[:limit]


def _lowest_first(scores: dict[bytes, int]) -> list[bytes]:
    return sorted(scores, key=lambda content: (scores[content], content))
