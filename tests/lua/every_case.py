"""The examples of all scripts: a slot with something in every key, and the call; also where it merges."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from tests.lua.cases import Example, seed_full
from tests.lua.stream_cases import seeded


def _found() -> Iterator[tuple[str, Example]]:
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if re.search(r"^EXAMPLES.* = {", path.read_text("utf-8"), re.MULTILINE):
            yield from import_module(f"tests.lua.{path.stem}").EXAMPLES.items()


_ALL = [*_found()]
EXAMPLES = dict(_ALL)
"""The name of a script, with what is done where it has several -> its example."""
assert len(EXAMPLES) == len(_ALL), "two examples have one name"
QUEUES = {name: example for name, example in EXAMPLES.items() if example.seed is seed_full}
"""Those on a slot with something in every key of a queue."""
STREAMS = {name: example for name, example in EXAMPLES.items() if example.seed is seeded}
"""Those on a slot with something in every key of a stream topic and of its group."""
