"""The handover of one slot between two workers: sessions, epochs, pauses, leases, and a failover of Redis that forgets.

The same model in Promela is `handover.pml`. What a step does to Redis is one script; `test_handover.py` carries it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple


class Failover(Enum):
    """What a failover of Redis may have forgotten; there is at most one.

    The first four are of the slot, whoever keeps the owner nodes. The last is of the nodes, where Redis keeps them; the
    slot, on another node of the cluster, forgets nothing.
    """

    NONE = "no failover"
    OUTCOMES = "forgets outcomes"
    CLAIMS = "forgets claims, too"
    EPOCH = "forgets the last epoch, too"
    NODES = "forgets owner nodes, and nothing of the slot"


class Worker(NamedTuple):
    """One worker, and what it has on the way.

    Attributes:
        epoch: That of its ownership as it believes; 0: none.
        told: Whether Redis was told this epoch.
        open: Whether nothing of an earlier owner was in flight then, so that it may claim.
        paused: Whether its process stands still.
        sent: Epoch of a claim that is on its way; 0: none.
        claimed: Epoch of the claim that it has, or whose reply is on its way; 0: none.
        handler: Whether a handler runs.
        lease: Whether the lease of what it has claimed runs, by the time of day.
    """

    epoch: int = 0
    told: bool = False
    open: bool = False
    paused: bool = False
    sent: int = 0
    claimed: int = 0
    handler: bool = False
    lease: bool = False


class Redis(NamedTuple):
    """What Redis has of the slot: the epoch, and whether something of each worker is in flight."""

    epoch: int = 0
    held: tuple[bool, bool] = (False, False)


class Called(NamedTuple):
    """A script as a worker calls it: `tell` is a claim of nothing.

    Attributes:
        verb: `tell`, `claim` or `ack`.
        worker: Who calls.
        epoch: In whose name.
        before: The slot before it.
        after: The slot after it; None where it is refused.
    """

    verb: str
    worker: int
    epoch: int
    before: Redis
    after: Redis | None


class Handover(NamedTuple):
    """A state.

    Attributes:
        owner: The worker whose owner node stands in ZooKeeper; -1: none.
        node: Its epoch; 0: there is none.
        remembered: Owner and epoch of the node that the replica of the nodes has.
        given: The last epoch that was given: where Redis gives them, its clock keeps them growing.
        workers: Both.
        redis: The master.
        replica: What its replica has got.
        failed: Whether the failover is over.
        highest: The highest epoch that a script has brought.
        begun: The highest epoch under which a handler has begun.
        late: An older epoch that a script was let in with after a higher one; 0: none.
        backwards: Whether a handler has begun under an older epoch than one before it.
        most: Most epochs that ZooKeeper gives.
        called: The last script; not part of what makes states differ.
    """

    owner: int = -1
    node: int = 0
    remembered: tuple[int, int] = (-1, 0)
    given: int = 0
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    redis: Redis = Redis()
    replica: Redis = Redis()
    failed: bool = False
    highest: int = 0
    begun: int = 0
    late: int = 0
    backwards: bool = False
    most: int = 3
    called: Called | None = None

    def put(self, number: int, worker: Worker, **changes: object) -> Handover:
        first, second = self.workers
        return self._replace(workers=(worker, second) if number == 0 else (first, worker), **changes)  # pyright: ignore[reportArgumentType]


def key_of(state: Handover) -> Handover:
    """Return what makes states differ."""
    return state._replace(called=None)


def call(state: Handover, verb: str, number: int, epoch: int) -> tuple[Handover, bool]:
    """Let a script reach Redis; tell whether it was let in."""
    before = state.redis
    if epoch < before.epoch:
        return state._replace(called=Called(verb, number, epoch, before, None)), False
    held = list(before.held)
    if verb != "tell":
        held[number] = verb == "claim"
    after = Redis(epoch, (held[0], held[1]))
    late = state.late or (epoch if epoch < state.highest else 0)
    called = Called(verb, number, epoch, before, after)
    return state._replace(redis=after, late=late, highest=max(state.highest, epoch), called=called), True


def steps(state: Handover, failover: Failover) -> Iterator[tuple[str, Handover]]:
    """Return each thing that can happen next, and the state after it."""
    for number in range(2):
        for word, after in _steps_of(state, number):
            yield f"worker {'AB'[number]}{word}", after
    if failover is Failover.NONE or state.failed:
        return
    if failover is Failover.NODES:
        there = state.owner, state.node
        if state.remembered != there:
            yield "the replica gets the owner node", state._replace(remembered=there)
            owner, node = state.remembered
            yield "the owner node is as it was before", state._replace(owner=owner, node=node, failed=True)
        return
    if state.replica != state.redis:
        yield "the replica gets all that was written", state._replace(replica=state.redis)
        if _may_fail(state, failover):
            yield "Redis fails over to its replica", state._replace(redis=state.replica, failed=True)


def _may_fail(state: Handover, failover: Failover) -> bool:
    """Whether the replica lacks no more than the failover may forget."""
    master, replica = state.redis, state.replica
    keeps_claims = all(there or not held for there, held in zip(replica.held, master.held, strict=True))
    return (failover is Failover.EPOCH or master.epoch == replica.epoch) and (
        failover is not Failover.OUTCOMES or keeps_claims
    )


def _befalls(state: Handover, number: int) -> Iterator[tuple[str, Handover]]:
    """What happens to a worker, whether or not it runs."""
    me = state.workers[number]
    held = state.redis.held[number]
    if me.sent:  # whatever becomes of the worker meanwhile
        after, let_in = call(state, "claim", number, me.sent)
        lease = {"claimed": me.sent, "lease": True} if let_in else {}
        word = f"'s claim with epoch {me.sent} {'arrives' if let_in else 'is refused'}"
        yield word, after.put(number, me._replace(sent=0, **lease))
    if state.owner == number and (me.paused or not me.epoch):
        yield "'s session ends", state._replace(owner=-1, node=0)
    # leases are renewed, but by who stands still, is fenced, or whose claim Redis has forgotten
    if me.lease and (me.paused or me.claimed < state.redis.epoch or not held):
        kept = tuple(there and index != number for index, there in enumerate(state.redis.held))
        redis = state.redis._replace(held=(kept[0], kept[1]))
        yield "'s lease ends", state.put(number, me._replace(lease=False), redis=redis)
    if held and not me.lease:  # a failover has brought it back
        kept = tuple(there and index != number for index, there in enumerate(state.redis.held))
        yield "'s entry is swept", state._replace(redis=state.redis._replace(held=(kept[0], kept[1])))


def _steps_of(state: Handover, number: int) -> Iterator[tuple[str, Handover]]:
    yield from _befalls(state, number)
    me = state.workers[number]
    held = state.redis.held[number]
    if me.paused:
        awake = me._replace(paused=False)
        if state.owner != number:  # two thirds of the session are over by its own clock: it looks before anything else
            awake = awake._replace(epoch=0, told=False, open=False)
        yield " wakes", state.put(number, awake)
        return
    yield " stands still", state.put(number, me._replace(paused=True))
    if me.epoch:
        yield from _owns(state, number, me)
    elif state.owner < 0 and state.given < state.most:
        given = state.given + 1
        owning = me._replace(epoch=given, told=False, open=False)
        yield f" gets the slot with epoch {given}", state.put(number, owning, owner=number, node=given, given=given)
    elif state.owner == number and state.failed and state.node:
        yield " finds its node again", state.put(number, me._replace(epoch=state.node, told=False, open=False))
    if me.handler:
        done = me._replace(handler=False, claimed=0, lease=False)
        after, let_in = call(state, "ack", number, me.claimed) if held else (state, False)
        # what is refused stays in flight until its lease ends
        done = done if let_in or not held else done._replace(lease=me.lease)
        yield "'s handler ends", after.put(number, done)
    elif me.claimed and not me.lease and not me.epoch:
        yield " drops what it has not begun", state.put(number, me._replace(claimed=0))


def _owns(state: Handover, number: int, me: Worker) -> Iterator[tuple[str, Handover]]:
    """What a worker does that believes to own the slot."""
    gone = me._replace(epoch=0, told=False, open=False)
    yield " hears nothing of ZooKeeper and gives up", state.put(number, gone)
    mine = state.owner == number
    released = {"owner": -1, "node": 0} if mine else {}
    yield " hands the slot over", state.put(number, gone, **released)
    if not me.told:
        after, let_in = call(state, "tell", number, me.epoch)
        yield f" tells Redis epoch {me.epoch}", after.put(number, me._replace(told=let_in))
        if not let_in and mine and state.node == me.epoch and state.given <= state.most:  # one more than else
            given = state.given + 1
            again = me._replace(epoch=given, told=False, open=False)
            yield f" owns the slot again with epoch {given}", state.put(number, again, node=given, given=given)
    elif not me.open and not any(state.redis.held):
        yield " finds nothing in flight", state.put(number, me._replace(open=True))
    if me.open and not (me.sent or me.claimed or me.handler):
        yield f" sends a claim with epoch {me.epoch}", state.put(number, me._replace(sent=me.epoch))
    fresh = me.lease or me.claimed >= state.redis.epoch  # what is fenced is not begun after its lease
    if me.claimed and not me.handler and me.claimed == me.epoch and fresh:
        backwards = state.backwards or me.claimed < state.begun
        begun = max(state.begun, me.claimed)
        yield "'s handler begins", state.put(number, me._replace(handler=True), begun=begun, backwards=backwards)
    elif me.claimed and not me.handler and not me.lease:
        yield " drops what it has not begun", state.put(number, me._replace(claimed=0))


def let_in_late(state: Handover) -> str | None:
    """The fence: once a script has brought an epoch, none with an older one is let in."""
    return f"epoch {state.late} is let in after epoch {state.highest}" if state.late else None


def two_at_once(state: Handover) -> str | None:
    """Exclusion: no two handlers of the slot run while the leases of both run."""
    both = all(worker.handler and worker.lease for worker in state.workers)
    return "two handlers run at once, and both leases run" if both else None


def out_of_order(state: Handover) -> str | None:
    """Order: no handler begins under an older epoch than one before it."""
    return "a handler begins under an older epoch than one before it" if state.backwards else None
