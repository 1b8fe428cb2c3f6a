"""What other versions, other tenants and accidents leave in the registry of topics."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import redis

from rmq import Topic, TopicType
from tests.support.core import SCHEMA_VERSION, TOPICS_KEY

NEWER_NAME = "of-a-newer-version"
"""A topic that only newer versions may act on."""


def garbage() -> dict[bytes, bytes]:
    """Return fields of `rmq:topics`, name -> text, each unreadable in its own way."""
    good = json.loads(Topic("x", TopicType.PRIORITY).to_json())

    def one(name: str, **changes: Any) -> bytes:
        return json.dumps({**good, "name": name, **changes}).encode()

    deletion = {"id": "000001700000000-00000000", "by": "ada", "at_ms": 1_700_000_000, "force": False, "done": True}
    versions = {"version": SCHEMA_VERSION + 7, "min_reader": SCHEMA_VERSION + 1}
    return {
        NEWER_NAME.encode(): one(NEWER_NAME, **versions),
        b"new-type": one("new-type", type="TIMER_WHEEL"),
        b"new-policy": one("new-policy", retry={"policy": "fibonacci"}),
        b"a-stranger": b"garbage",
        b"empty": b"",
        b"not-utf-8": b"\xff\xfe\xfd",
        b"no-object": b"[1,2]",
        b"deep": b'{"a":' * 10_000,
        b"digits": b"9" * 5_000,
        b"huge": b'{"name":"' + b"x" * 2_000_000 + b'"}',
        b"wrong-slots": one("wrong-slots", slots="8"),
        b"wrong-lease": one("wrong-lease", lease_s=1e30),
        b"wrong-version": one("wrong-version", version="two"),
        b"of-another-name": one("the-name"),
        b"no-name\xff\x1b[31m": b"garbage",
        b"no {name}": one("no {name}"),
        b"": b"{}",
        b"n" * 200: b"{}",
        b"surrogate": json.dumps({**good, "name": "\ud800"}).encode(),
        b"wrong-ladder": one("wrong-ladder", retry={"policy": "ladder", "steps_s": "abc"}),
        b"wrong-deletion": one("wrong-deletion", deleted={"id": 1}),
        b"wrong-deleted": one("wrong-deleted", deleted="yesterday"),
        b"wrong-time": one("wrong-time", deleted={**deletion, "at_ms": 10**30}),
        b"wrong-tombstones": one("wrong-tombstones", tombstones=7),
        b"wrong-retention": one("wrong-retention", type="STREAM", retention=7),
    }


@contextmanager
def littered(server: redis.Redis) -> Generator[int]:
    """Put all of it into the registry; give how many there are."""
    found = garbage()
    server.hset(TOPICS_KEY, mapping=found)  # pyright: ignore[reportArgumentType]
    try:
        yield len(found)
    finally:
        server.hdel(TOPICS_KEY, *found)  # pyright: ignore[reportArgumentType]
