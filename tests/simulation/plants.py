"""Bugs that simulations must find: of the kind that needs a rare order of events. `planting` plants them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.mutants.mutant import Edit
from tests.simulation.plan import Limits

USUAL, SCHEDULED = Limits(scheduled=0.0), Limits(scheduled=1.0)
STREAMS, OWNED_STREAMS = replace(USUAL, kinds=("stream",)), replace(USUAL, kinds=("stream",), owned=1.0)
"""Plans that have what some bugs need, of which the usual ones are few."""


@dataclass(frozen=True)
class Plant:
    """A planted bug.

    Attributes:
        name: What goes wrong, in words.
        python: Path of a function, as `module:Class.method`, text to replace in it, text to put there.
        lua: The same for the scripts; see `tests.mutants`.
        limits: Of which plans its seeds are: those that have what it needs, such as schedules, a stream or owners.
    """

    name: str
    python: tuple[Edit, ...] = ()
    lua: tuple[Edit, ...] = ()
    limits: Limits = USUAL


def _schedules(name: str, *edits: Edit) -> Plant:
    return Plant(name, python=edits, limits=SCHEDULED)


def _python(name: str, *edits: Edit) -> Plant:
    return Plant(name, python=edits)


def _lua(name: str, *edits: Edit, limits: Limits = USUAL) -> Plant:
    return Plant(name, lua=edits, limits=limits)


LEASES, HANDLERS = "rmq._claiming.leases", "rmq._listening.handler_invoker:HandlerInvoker"
THREAD, EXCHANGE = "rmq._listening.worker:Worker", "rmq._transport.exchange:Exchange"
SHARED = "rmq._transport.shared_calls:SharedCalls"
CONNECTIONS = "rmq._transport.connections:Connections"
RUNNER, SCHEDULES = "rmq._schedules.schedules:ScheduleRunner", "rmq._schedules.schedules:Schedules"

OWNERSHIP = "rmq._ownership"

ACKED = "__import__('rmq._model.outcomes', fromlist=['ACKED']).ACKED"
NEW = "__import__('rmq._model.replies', fromlist=['SendResult']).SendResult(1, 0)"
MINE = "redis.call('ZSCORE', slot.prepare, content)"

PLANTS = (
    # calls that share round trips
    _python(
        "who combined calls wakes nobody",
        ("rmq._servers.combiner:Combiner.leave", "for each in (*served, *failed):", "for each in failed:"),
    ),
    _python(
        "replies of joined calls are given to the wrong callers",
        (f"{SHARED}._outcomes", "joining.replies(reply)", "joining.replies(reply)[::-1]"),
    ),
    # leases
    _python("no lease is renewed", (f"{LEASES}:LeaseKeeper.renew", "self._begin()", "pass")),
    _python(
        "renewals end with their first failure",
        (
            f"{LEASES}:LeaseKeeper.renew",
            "before, self._failed = self._failed, {}",
            "before = self._failed\n    if before:\n        return",
        ),
    ),
    _python(
        "a renewal overtakes the ack of its delivery",
        (f"{LEASES}:InFlight.begin_renewing", "and not claim.busy ", ""),
        (f"{LEASES}:InFlight.begin_renewing", "claim.busy = True", "pass"),
        (f"{LEASES}:LeaseKeeper._begin", "* 2 / 3", "* 0.99"),
    ),
    _python(
        "a delivery whose lease is over is begun",
        (f"{HANDLERS}._ready", "now_s >= claim.lease_until_s", "False"),
        (f"{HANDLERS}._ready", "1 in claim.lost and", "False and"),
    ),
    _lua(
        "a lease ends at once after a renewal", ("extend", "whole(stamp * 1000 +", "whole((stamp - lease_ms) * 1000 +")
    ),
    _lua("a lease is renewed after its loss", ("extend", "scores[i] == claim_score", "scores[i]")),
    # outcomes
    _python(
        "a delivery is acked when it is claimed",
        (
            f"{THREAD}._carry_out",
            "self._take(round_)",
            f"[claim.settle_open({ACKED}) for claim in round_.claims]; self._take(round_)",
        ),
    ),
    _python("what was not begun is acked at the stop", (f"{THREAD}.stop_starting", "RELEASED", ACKED)),
    _lua(
        "a stranger's ack counts",
        ("settle_acks", "scores[i] ~= claim_score then", "not scores[i] then"),
        ("settle_acks", "scores[i] == claim_score and mine", "scores[i] and mine"),
    ),
    _lua("a stranger's nack counts", ("settle_nacks", f"if {MINE} ~= claim_score", f"if not {MINE}")),
    _lua("an ack drops a fresh copy's body", ("drop_bodies", "if not fresh[i] then", "if true then")),
    _lua("a failed flight drops what was sent since", ("fold_back", "if fresh then", "if false then")),
    # replies that are lost or late
    _python(
        "a lost hint is not made up for",
        ("rmq._listening.watcher:SlotPoller.step", "look(self._connections, places, PATIENCE_S)", "pass"),
    ),
    _python(
        "a reply is left for the next caller",
        (
            f"{CONNECTIONS}._exchange",
            "        wire.close()\n        if not isinstance(error, WireBrokenError):",
            "        (node.give_back if isinstance(error, WireTimeoutError) else type(wire).close)(wire)\n"
            "        if not isinstance(error, WireBrokenError):",
        ),
        ("rmq._servers.nodes:Node.idle_wire", "if not wire.can_read():", "if True:"),
    ),
    _python(
        "a send whose reply is lost counts as accepted",
        (
            f"{EXCHANGE}._lose_reply",
            "if call.repeatable:",
            f"if call.script.startswith('send'):\n        self.settle(index, {NEW})\n    elif call.repeatable:",
        ),
    ),
    _python("a send counts though no replica has it", (f"{EXCHANGE}._confirm", "if missing else", "if False else")),
    _lua("a repeated send counts again", ("completed", "if number == call.number then", "if false then")),
    # claims
    _lua(
        "what is in flight is claimed again",
        ("take", "if held and held[i] then", "if false then"),
        ("into_prepare", "'NX', unpack(claims)", "unpack(claims)"),
    ),
    _lua("a late send folds into what is in flight", ("hold", "redis.call('HDEL', slot.body, unpack(moved))", "")),
    _python(
        "the watcher sleeps while a claim is under way",
        (
            "rmq._listening.listener_runner:ListenerRunner.check",
            "map(_is_at_work,",
            "map(lambda each: each.held.all(),",
        ),
    ),
    # streams
    _lua(
        "a pass over what is pending goes on where the last one ended",
        ("scan_pending", "pass.cursor = ''\n    pass.at", "pass.at"),
        limits=STREAMS,
    ),
    _lua(
        "a stranger's ack of an entry counts",
        ("held_counts", "#ids, holder)) do", "#ids)) do"),
        ("held_counts", "row and row[2] == holder", "row"),
        ("settle_entries", "counts[id] == deliveries and mine", "counts[id] and mine"),
        limits=STREAMS,
    ),
    _lua(
        "an owner reads on beside its owner before",
        ("claim_entries", "and busy_until == 0 then", "then"),
        ("claim_entries", "not (others and others_at_work(slot, epoch, now_ms, lease_ms, out))", "true"),
        limits=OWNED_STREAMS,
    ),
    _lua(
        "a stream is trimmed before all groups have acked",
        ("stream_trim", "not unacked and", "unacked and"),
        limits=STREAMS,
    ),
    _python(
        "what is put back into a delayed queue is gone",
        ("rmq.delayed:DelayedQueue.put_back", "delivery.nack(error=error)", "delivery.ack()"),
    ),
    # owners
    _python(
        "a slot is claimed from beside its owner before",
        ("rmq._claiming.claim_planner:HandoverGate.open_drained", "if not in_flight:", "if True:"),
    ),
    _python(
        "slots stay with who has lost ZooKeeper",
        (
            "rmq._ownership.rounds:Rounds.owned",
            "if view.breaks == self._breaks and monotonic_s() < deadline_s",
            "if True",
        ),
        ("rmq._ownership.machine:WorkerMachine.expire", "if now_s < self.deadline_s or", "if True or"),
        ("rmq._ownership.machine:WorkerMachine.owned", "if not self._claims(now_s):", "if False:"),
        ("rmq._claiming.claim_planner:HandoverGate.open_drained", "if not in_flight:", "if True:"),
    ),
    _lua("older owners are let in", ("check_fence", "if mine < owner then", "if false then")),
    # schedules
    _schedules(
        "a schedule is released before its send",
        (
            f"{RUNNER}._run",
            "producer.send(",
            "delivery.claim.settle_open(Outcome(Verb.RELEASE, due_ms=next_ms), (delivery.row,)); producer.send(",
        ),
    ),
    _schedules(
        "the next time of a schedule is computed from the worker's clock",
        (
            f"{RUNNER}._run",
            "now_ms, due_ms, fields = delivery.claimed_ms,",
            "now_ms, due_ms, fields = delivery.claimed_ms + 90_000,",
        ),
    ),
    _schedules(
        "a registration moves the due time although nothing changed",
        (
            f"{SCHEDULES}._standing",
            "there.to_fields() == schedule.to_fields()",
            "there.to_json() == schedule.to_json()",
        ),
    ),
    _schedules(
        "a lower version of a schedule replaces a higher one",
        (f"{SCHEDULES}._standing", "if there.outranks(schedule) else", "if schedule.outranks(there) else"),
    ),
    _schedules(
        "the due time of a schedule is forgotten when a worker dies",
        (f"{RUNNER}._run", "due_ms = min(filter(", "due_ms = now_ms or min(filter("),
    ),
    _schedules(
        "only the last missed time of a schedule is sent",
        (f"{RUNNER}._run", "next_ms(due_ms if schedule.catch_up else now_ms)", "next_ms(now_ms)"),
    ),
    _schedules(
        "a schedule that is removed in flight comes back",
        (f"{SCHEDULES}.remove", "if _present(self._find(name)) is not None:", "if False:"),
    ),
)
