"""What `rmq send` says of a file that was stored in part: where to go on, and what would count twice then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmq import Merge, SendError, Sum, Topic, TopicType
from rmq.cli.commands.send import _where_to_go_on  # pyright: ignore[reportPrivateUsage]

LINES = cast("Any", SimpleNamespace(place=lambda number: (number, f"line {number}")))
TWICE = "; continue at line 3; up to 4 messages from there on may already be stored, and would count twice"


@pytest.mark.parametrize(
    ("topic", "once", "end"),
    [
        (Topic("a", TopicType.PRIORITY), None, "; continue at line 3"),
        (Topic("a", TopicType.STREAM), None, TWICE),
        (Topic("a", TopicType.PRIORITY, merge=Merge(Sum())), None, TWICE),
        (Topic("a", TopicType.PRIORITY, merge=Merge(Sum())), "name", "; send the whole input again with --once 'name'"),
    ],
)
def test_what_may_be_there_already_is_told_where_it_would_count_twice(topic: Topic, once: str | None, end: str) -> None:
    error = SendError("lost", stored=5, not_stored=(3,), unknown=(4,))
    assert _where_to_go_on(error, LINES, topic, once).endswith(end)
