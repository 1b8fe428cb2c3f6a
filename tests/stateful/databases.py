"""Where a machine plays its histories."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeVar

import redis
from hypothesis.stateful import RuleBasedStateMachine

from tests.support.core import Connections, ScriptLibrary, parse_url

M = TypeVar("M", bound=RuleBasedStateMachine)


@contextmanager
def on_database(redis_url: str, number: int, machine: type[M], scripts: ScriptLibrary) -> Iterator[type[M]]:
    """Give the machine `connections` and `client` of a database of its own: it flushes it between histories."""
    url = f"{redis_url}?db={number}"
    with closing(Connections(parse_url(url), scripts=scripts)) as connections, redis.Redis.from_url(url) as client:
        made: Any = type("Machine", (machine,), {"connections": connections, "client": client})
        yield made
