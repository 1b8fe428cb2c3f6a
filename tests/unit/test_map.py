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
    "Where is a lease renewed?": [("LeaseKeeper.renew", "rmq/_claiming/leases.py")],
    "What does a nack write?": [
        ("settle_nacks", "lua/libraries/settlements.lua"),
        ("roll_back", "lua/libraries/settlements.lua"),
    ],
    "Who decides that a slot is due?": [("DueTimes.due", "rmq/_claiming/due_times.py")],
    "Which script moves a message to dead?": [
        ("bury", "lua/libraries/dead.lua"),
        ("settle_nacks", "lua/libraries/settlements.lua"),
        ("sweep", "lua/libraries/claims.lua"),
        ("enter_dead", "lua/libraries/dead.lua"),
        ("expire", "lua/libraries/claims.lua"),
    ],
    "Where is the claim stamp made?": [
        ("next_stamp", "lua/libraries/clock.lua"),
        ("read_slot_clock", "lua/libraries/clock.lua"),
    ],
    "Who takes over a slot of a dead worker?": [
        ("assign", "rmq/_ownership/assignment.py"),
        ("decide", "rmq/_ownership/leading.py"),
        ("WorkerMachine.plan", "rmq/_ownership/machine.py"),
    ],
    "Where are wake hints published?": [("hint", "lua/libraries/redis.lua")],
    "Where are wake hints heard?": [("WakeupSubscriber.read", "rmq/_claiming/wakeups.py")],
    "What may be repeated after a lost reply?": [
        ("Call.repeatable", "rmq/_transport/call.py"),
        ("Exchange.lost", "rmq/_transport/exchange.py"),
    ],
    "Where does a refusal, or a lost reply, become an error?": [
        ("error_of", "rmq/_transport/refusals.py"),
        ("reply_lost", "rmq/_transport/refusals.py"),
    ],
    "Where is the order of equal priorities decided?": [
        ("aged", "lua/libraries/scores.lua"),
        ("ages_for", "rmq/_model/scores.py"),
    ],
    "How is a rate kept in the whole cluster?": [
        ("RateLimiter.take", "rmq/_claiming/rate_limit.py"),
        ("take_tokens.lua", "lua/shared/take_tokens.lua"),
    ],
    "Where is a definition's version checked?": [
        ("read_document", "rmq/_model/schema.py"),
        ("read_definition", "rmq/_broker/registry.py"),
    ],
    "How is a stream trimmed?": [
        ("drop", "lua/streams/stream_trim.lua"),
        ("StreamBroker.look_after", "rmq/_broker/stream_broker.py"),
    ],
}
"""What a newcomer asks, and where the answer is. The map names all of these places in the question's own line."""


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_newcomer_finds_the_answer_in_one_hop(question: str) -> None:
    assert [(name, path.removeprefix("../../")) for name, path in LINK.findall(ROWS[question])] == QUESTIONS[question]


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
