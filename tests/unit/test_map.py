"""A newcomer finds the code: from the README over the map in architecture.md to the function, one hop each."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/internals/architecture.md"
MAP = PAGE.read_text("utf-8")
ROWS = dict(re.findall(r"^\| ([^|]+\?) \| (.+) \|$", MAP, re.MULTILINE))
LINK = re.compile(r"\[`([^`]+)`\]\(([^)]+)\)")

QUESTIONS = {
    "Where is a lease renewed?",
    "What does a nack write?",
    "Who decides that a slot is due?",
    "Which script moves a message to dead?",
    "Where is the claim stamp made?",
    "Who takes over a slot of a dead worker?",
    "Where are wake hints published?",
    "Where are wake hints heard?",
    "What may be repeated after a lost reply?",
    "Where does a refusal, or a lost reply, become an error?",
    "Where is the order of equal priorities decided?",
    "How is a rate kept in the whole cluster?",
    "Where is a definition's version checked?",
    "How is a stream trimmed?",
}
"""What a newcomer asks. The map answers each in a line of its own."""


def test_the_map_has_a_line_for_what_a_newcomer_asks() -> None:
    assert QUESTIONS <= ROWS.keys()


def test_the_readme_leads_to_the_map() -> None:
    assert "](docs/internals/architecture.md)" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("question", ROWS)
def test_every_line_of_the_map_names_what_its_file_defines(question: str) -> None:
    links = LINK.findall(ROWS[question])
    assert links
    for name, path in links:
        file = PAGE.parent / path
        if "." in name and path.endswith(name):  # the file as a whole
            assert file.exists()
        else:
            assert defines(file, name), f"{path} does not define {name}"


def defines(file: Path, name: str) -> bool:
    """Return whether a Python or Lua file defines a function, class, method or field."""
    text = file.read_text("utf-8")
    if file.suffix == ".lua":
        return re.search(rf"^local function {re.escape(name)}\(", text, re.MULTILINE) is not None
    body: list[ast.stmt] = ast.parse(text).body
    for part in name.split("."):
        found = next((node for node in body if name_of(node) == part), None)
        if found is None:
            return False
        body = found.body if isinstance(found, ast.ClassDef) else []
    return True


def name_of(node: ast.stmt) -> str | None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return None
