"""Carries the calls of a search out on the real scripts: a state is put into Redis, a script runs, all is compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import redis

from tests.models.slot_world import Played
from tests.stateful.model import Model
from tests.support.core import Call, ClaimReply, ScriptLibrary, error_of, slot_keys
from tests.support.slots import CLOCK_KEY, DUMP, DUMP_SHA, SlotState, dump_keys, state_of, write_state

AT_ONCE = 200
"""Calls in one pipeline."""


def differences(client: redis.Redis, scripts: ScriptLibrary, played: Iterable[Played]) -> Iterator[str]:
    """Carry out calls, each on the state before it; return those after which the scripts and the model differ."""
    for script in scripts.names():
        client.script_load(scripts.text(script))
    client.script_load(DUMP)
    rest = iter(played)
    while some := list(islice(rest, AT_ONCE)):
        yield from _differences(client, scripts, some)


def _differences(client: redis.Redis, scripts: ScriptLibrary, played: list[Played]) -> Iterator[str]:
    pipeline: Any = client.pipeline(transaction=False)
    ends: list[int] = []
    for each in played:
        call, keys = each.call, slot_keys(each.call.topic, 0)
        names = dump_keys(keys)
        pipeline.delete(*names)
        write_state(pipeline, keys, seeded(each.before))
        pipeline.set(CLOCK_KEY, each.before.now_ms)
        pipeline.evalsha(scripts[call.script].sha, len(call.keys), *call.keys, *call.args)
        pipeline.evalsha(DUMP_SHA, len(names), *names)
        ends.append(len(pipeline))
    replies = pipeline.execute(raise_on_error=False)
    for each, end in zip(played, ends, strict=True):
        answer, found = _answer(each.call, replies[end - 2]), state_of(replies[end - 1])
        expected = each.after.state()
        wanted = adapted(each, answer)
        same = (answer, found, found.clock) == (wanted, expected, expected.clock)
        if not same:
            yield f"{each.name}: on {seeded(each.before)} it answers {answer}, not {wanted}, and leaves {found}"


def seeded(model: Model) -> SlotState:
    """Return a slot as it is put into Redis."""
    return replace(model.state(), hints=[])


def _answer(call: Call[Any], reply: Any) -> Any:
    """Return what the caller gets; of an error its type."""
    if isinstance(reply, redis.ResponseError):
        return type(error_of(call, str(reply)))
    return call.parse(reply)


def adapted(played: Played, answer: Any) -> Any:
    """Return the model's reply; a claim that stops at its limit need not know whether more is due."""
    expected = played.reply
    if not isinstance(expected, ClaimReply) or not isinstance(answer, ClaimReply):
        return expected
    soon, said = expected.next_due_ms, answer.next_due_ms
    if 0 < said <= answer.now_ms and (0 < soon <= answer.now_ms or len(answer.messages) == played.limit):
        return expected._replace(next_due_ms=said)
    return expected
