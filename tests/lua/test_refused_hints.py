"""A server that refuses a wake hint changes no answer: what was written stays, and the caller hears so (pitfall 8)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from rmq import RangeMergeMessage, Topic, TopicType
from rmq.errors import ReplyLostError
from rmq.spark.marks import Mark, send_once
from tests.conftest import MakeSlot, MakeTopic
from tests.lua import stream_cases
from tests.lua.cases import FULL, LIMITS, LIVE, OWNER, WRITERS, script_of
from tests.support.core import (
    Call,
    Connections,
    EncodedMessage,
    Nack,
    Outcomes,
    ScriptLibrary,
    control,
    encode,
    parse_url,
)
from tests.support.one_slot import claim_slot
from tests.support.slots import scripts_under_test, scripts_with_fake_clock

RELEASE = (Nack(b"held", LIVE, "release", 2**52),)


def _send_once(topic: Topic) -> Call[Any]:
    messages = [EncodedMessage(0, b"new", 2**52, b"body")]
    return send_once(topic, 0, messages, Mark("q1", 1, 0, 60).of(0, messages))


def _send_once_merged(topic: Topic) -> Call[Any]:
    messages = [encode(topic, RangeMergeMessage("new", body=1))]
    return send_once(topic, 0, messages, Mark("q1", 1, 0, 60).of(0, messages))


CASES: dict[str, tuple[TopicType, Callable[[Topic], Call[Any]]]] = {
    **WRITERS,
    "claim": (
        TopicType.FIXED_TIME,
        lambda topic: claim_slot(topic, 0, 0, owner=OWNER, outcomes=Outcomes(nacks=RELEASE)),
    ),
    "pause": (TopicType.FIXED_TIME, lambda topic: control.pause(topic, 0, False, "me")),
    "send: chunk": (TopicType.PRIORITY, _send_once),
    "send_merged: chunk": (TopicType.RANGE_MERGE, _send_once_merged),
}
STREAM_CASES = stream_cases.WRITERS


def hinting() -> list[str]:
    library = scripts_under_test()
    return [name for name in library.names() if re.search(r"(?<!function )\bhint\(", library.text(name))]


def test_no_script_publishes_in_another_way() -> None:
    library = scripts_under_test()
    assert [name for name in library.names() if re.search(r"redis\.call\(\w*publish", library.text(name))] == []
    assert len(hinting()) > 10


def as_mute(url: str, client: Any, scripts: ScriptLibrary) -> Connections:
    """Connections of a user who may do everything but publish: what `+@all ~*` gives from Redis 7.0 on."""
    client.execute_command("ACL", "SETUSER", "mute", "reset", "on", ">pw", "~*", "+@all", "resetchannels")
    return Connections(parse_url(url.replace("unix://", "unix://mute:pw@", 1)), scripts=scripts)


@pytest.mark.parametrize("script", [name for name in CASES if script_of(name) in hinting()])
def test_a_refused_hint_changes_no_answer(script: str, make_slot: MakeSlot, redis_url: str) -> None:
    kind, case = CASES[script]
    found: list[Any] = []
    for mute in (False, True):
        slot = make_slot(kind, **LIMITS.get(script, {}))
        slot.seed(FULL)
        library = scripts_with_fake_clock()
        connections = as_mute(redis_url, slot.client, library) if mute else slot.connections
        found.append((connections.run(case(slot.topic)), slot.state()))
        connections.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("script", [name for name in STREAM_CASES if script_of(name) in hinting()])
def test_a_refused_hint_changes_no_answer_on_streams(
    script: str, make_topic: MakeTopic, redis_client: Any, redis_url: str
) -> None:
    topic = make_topic(TopicType.STREAM, checked=False, max_retries=16)
    names = stream_cases.seed(redis_client, topic)
    connections = as_mute(redis_url, redis_client, scripts_under_test())
    try:
        connections.run(STREAM_CASES[script](topic, names))
    finally:
        connections.close()


@pytest.mark.parametrize("denied", ["zadd", "hincrby"])
def test_a_send_that_breaks_off_for_lack_of_a_right_may_have_stored_something(
    denied: str, make_slot: MakeSlot, redis_url: str
) -> None:
    slot = make_slot(TopicType.PRIORITY, checked=False)
    slot.client.execute_command("ACL", "SETUSER", "mute", "reset", "on", ">pw", "~*", "&*", "+@all", f"-{denied}")
    limited = Connections(parse_url(redis_url.replace("unix://", "unix://mute:pw@", 1)), scripts=scripts_under_test())
    try:
        with pytest.raises(ReplyLostError, match="may be partly stored"):
            limited.run(WRITERS["send: priority"][1](slot.topic))
    finally:
        limited.close()
