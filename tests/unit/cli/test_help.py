"""Every command explains itself: each argument and option in a sentence, at 80 columns, with the words it takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from rmq.cli.app import app


def commands_of(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Every command and group, by what a user types."""
    yield " ".join(path), group
    for name, each in getattr(group, "commands", {}).items():
        yield from commands_of(each, *path, name)


COMMANDS = dict(commands_of(typer.main.get_command(app)))


def shown_of(name: str) -> str:
    env = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    return CliRunner().invoke(app, [*name.split(), "--help"], env=env, prog_name="rmq").stdout


@pytest.mark.parametrize("name", COMMANDS, ids=lambda name: name or "rmq")
def test_a_command_explains_itself(name: str) -> None:
    command, text = COMMANDS[name], shown_of(name)
    assert command.help, name
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"…|<|\bbool\b|Optional\[", text)
    flat = " ".join(re.sub(r"[│╭╰─╮╯]", " ", text).split())
    for each in command.params:
        if getattr(each, "hidden", False):
            continue
        assert each.help, each.opts
        assert each.help.rstrip().endswith((".", "]")), each.opts
        kind = str(type(each).display_type_rich(each, ctx=None))
        for choice in re.findall(r"[a-z-]{3,}", kind) if kind.startswith("<") and "|" in kind else ():
            assert re.search(rf"\b{choice}\b", flat), (each.opts, choice)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name], ids=str)
def test_a_command_begins_with_what_it_does(name: str) -> None:
    first, _, rest = COMMANDS[name].help.partition(" ")
    assert first[0].isupper()
    assert not first.endswith("s"), "an imperative"
    assert rest.rstrip().endswith((".", ")", "]"))
