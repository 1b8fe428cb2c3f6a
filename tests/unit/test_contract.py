"""The contract page says what the code does: keys, totals, and which scripts are repeated after a lost reply."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import astuple
from pathlib import Path

import pytest

from rmq._admin.figures import TOTALS
from rmq._admin.stream_view import GROUP_TOTALS, STREAM_TOTALS
from rmq._broker import keys
from tests.support.bindings import MODULES, bound_in

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/internals/contract.md").read_text("utf-8")
_NEVER = PAGE.partition("These are never repeated:")[2].partition("All other scripts")[0]
NEVER_REPEATED = set(re.findall(r"`(\w+)`", re.sub(r"^(\|[^|]+\|).*", r"\1", _NEVER, flags=re.MULTILINE)))


def key_names() -> set[str]:
    """Every key as the page writes it: topic T, slot n, group G, query Q, write W."""
    parts = "T", 7, "G"
    names = {
        *astuple(keys.slot_keys("T", 7)),
        *astuple(keys.group_keys(*parts)),
        *astuple(keys.query_keys("T", 7, "Q")),
    }
    names |= {
        keys.sent_key("T", 7, "Q"),
        keys.rate_key("T"),
        keys.group_rate_key("T", "G"),
        keys.write_rate_key("T", "W"),
    }
    names |= {keys.group_rate_key("T", "G"), keys.spark_queries_key("T")}
    names |= {keys.history_key(None), keys.history_key("T")}
    names |= {value for name, value in vars(keys).items() if name.endswith("_KEY")}
    names |= {*keys.OWNERS_KEYS.values()}
    return {name.replace("T_7", "T_n") for name in names}


def test_the_tables_have_every_key_and_no_other() -> None:
    rows = set(re.findall(r"^\| `([^`]+)` \| (?:ZSET|HASH|STREAM|STRING|LIST|channel) \|", PAGE, re.MULTILINE))
    assert rows == key_names()


@pytest.mark.parametrize(
    ("start", "end", "totals"),
    [
        ("Totals of a slot:", "Their meaning", TOTALS),
        ("Totals of a stream:", "Totals of a group:", STREAM_TOTALS),
        ("Totals of a group:", "## ", GROUP_TOTALS),
    ],
)
def test_the_page_names_every_total(start: str, end: str, totals: list[str]) -> None:
    assert re.findall(r"`(\w+)`", PAGE.partition(start)[2].partition(end)[0]) == totals


def repeatable() -> dict[str, set[str]]:
    """Each script -> what its calls say of being repeated, as source text."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in MODULES:
        tree = ast.parse(module.read_text("utf-8"))
        bound = bound_in(module)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            variable = name.partition(".")[0]
            if name.endswith("._replace") and variable in bound:
                found[bound[variable].name] |= {
                    ast.unparse(each.value) for each in node.keywords if each.arg == "repeatable"
                }
            elif name.endswith((".call", ".call_on")) and variable in bound:
                found[bound[variable].name].add(str(bound[variable].repeatable))
            elif name == "Claims":  # its calls are as repeatable as their script
                script = bound[ast.unparse(node.args[0])]
                found[script.name].add(str(script.repeatable))
            elif name == "Settlements":
                script = bound[ast.unparse(node.args[1])]
                found[script.name].add(str(script.repeatable))
            elif name == "Call" and ast.unparse(node.args[4]) != "self._script.repeatable":
                owner = ast.unparse(node.args[0]).partition(".")[0].strip("'")
                found[bound[owner].name if owner in bound else owner].add(ast.unparse(node.args[4]))
    return found


def test_the_page_names_what_is_never_repeated() -> None:
    found = repeatable()
    assert len(found) > 40
    assert {script for script, values in found.items() if values - {"True"}} == NEVER_REPEATED
    assert {"claim", "settle", "stream_settle"} <= {script for script, values in found.items() if values == {"False"}}
