"""Calls bind keys and arguments by the names of the scripts' headers: everywhere, all of them, and no others."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq import Collect, Fixed, Merge, Sliding, Sum, Topic, TopicType, WhenFull
from rmq._broker.binding import FILLED_IN, SETTINGS, BoundScript
from rmq._broker.keys import OWNERS_KEYS, GroupKeys, QueryKeys, SlotKeys, slot_keys
from rmq._broker.sends import merge_rules
from rmq._model.scores import ages_for
from rmq._transport.script_library import default_scripts
from tests.support.bindings import MODULES, bound_in

PACKED = {"detailed", "unit", "max_backlog", "ages", "limits", "chunk", "parts"}
"""What `QueueSends` puts together from parts."""

OPTIONS = {"group", "durable", "keys", "slot"}
"""What `BoundScript.call` and `call_on` take beside arguments."""


class Use:
    """One place where a module binds the arguments or the keys of a script."""

    def __init__(self, module: Path, script: str, call: ast.Call) -> None:
        assert isinstance(call.func, ast.Attribute)
        self.script, self.what = script, call.func.attr
        self.positional = len(call.args)
        self.names = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
        self.spread = any(keyword.arg is None for keyword in call.keywords)
        named = (
            call.args[2:] if self.what == "call_on" else [each.value for each in call.keywords if each.arg == "keys"]
        )
        self.keys = {
            key.value
            for each in named
            if isinstance(each, ast.Dict)
            for key in each.keys
            if isinstance(key, ast.Constant)
        }
        self.place = f"{module.stem}:{call.lineno}"


def uses() -> Iterator[Use]:
    for module in MODULES:
        tree = ast.parse(module.read_text(encoding="utf-8"))
        bound = bound_in(module)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                if isinstance(owner, ast.Name) and owner.id in bound:
                    yield Use(module, bound[owner.id].name, node)


USES = list(uses())


def test_every_script_is_bound() -> None:
    bound = {each.name for module in MODULES for each in bound_in(module).values()}
    assert bound == set(default_scripts().names())


CALLS = [use for use in USES if use.what in ("args", "call", "call_on")]


@pytest.mark.parametrize("use", CALLS, ids=lambda use: use.place)
def test_arguments_are_those_of_the_header(use: Use) -> None:
    wanted = default_scripts()[use.script].args
    names = set(wanted.required) - FILLED_IN.keys() | ({wanted.tail} if wanted.tail else set())
    given = use.names if use.what == "args" else use.names - OPTIONS
    assert given <= names
    if not use.spread:
        assert given >= names - (SETTINGS.keys() | OPTIONS if use.what == "call" else set())
    assert use.positional == {"args": 0, "call": 3, "call_on": 3}[use.what]


@pytest.mark.parametrize("use", [use for use in CALLS if use.keys], ids=lambda use: use.place)
def test_keys_are_those_of_the_header(use: Use) -> None:
    wanted = default_scripts()[use.script].keys
    assert use.keys <= {*wanted.required, *wanted.optional}


def test_arguments_that_are_put_together_are_those_of_the_header() -> None:
    wanted = default_scripts()["send"].args
    assert {*wanted.required, wanted.tail} - FILLED_IN.keys() == PACKED


LARGEST = 2**53 - 1
HEADER = (Path(__file__).resolve().parents[3] / "lua/libraries/merge_plan.lua").read_text("utf-8")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (TopicType.RANGE_MERGE, {"merge": Merge(Collect(100_000, 2**20), window=Sliding(max_wait="36500d"))}),
        (TopicType.RANGE_MERGE, {"merge": Merge(Sum(), window=Fixed("1m"), max_count=2**31), "slots": 1}),
        (TopicType.FIXED_TIME, {"merge": Merge(), "max_backlog": LARGEST, "when_full": WhenFull.DROP, "slots": 1}),
        (TopicType.PRIORITY, {"merge": Merge(priority="sum"), "ttl": "1d", "max_retries": 999}),
        (TopicType.PRIORITY, {"merge": Merge(), "ties": "any"}),
    ],
    ids=lambda value: value.value if isinstance(value, TopicType) else "",
)
def test_packed_rules_are_those_of_the_include_that_reads_them(kind: TopicType, settings: dict[str, Any]) -> None:
    rules = json.loads(merge_rules(Topic("t", kind, **settings)))
    assert list(rules) == re.findall(r"^--   (\w+)  ", HEADER, re.MULTILINE)
    assert max(value for value in rules.values() if isinstance(value, int)) <= LARGEST  # what a double of Lua holds
    assert [name for name, value in rules.items() if type(value) is bool] == ["drop", "ttl"]


def test_what_a_call_does_not_say_is_an_error() -> None:
    args = BoundScript("audit").args
    assert args(actor="me", action="a", detail="d", outcome="o") == ["me", "a", "d", "o"]
    assert BoundScript("purge_dead").args(actor="me", contents=[b"a", b"b"]) == ["me", b"a", b"b"]
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'detail'"):
        args(actor="me", action="a", outcome="o")
    with pytest.raises(TypeError, match="unexpected keyword argument 'actors'"):
        args(actors="me", action="a", detail="d", outcome="o")
    with pytest.raises(TypeError, match="positional"):
        args("me", "a", "d", "o")


def test_a_call_takes_what_the_topic_says_from_there() -> None:
    topic = Topic("t", TopicType.PRIORITY, slots=2, max_retries=3, lease="9s", max_backlog=11)
    assert BoundScript("peek").settings_of(topic) == {"order": "high"}
    assert BoundScript("send").settings_of(topic) == {"max_backlog": 6}
    assert BoundScript("stream_consumers").settings_of(topic, "g") == {"group": "g"}
    assert BoundScript("stream_list_dead").settings_of(topic, "g") == {}
    ages = ages_for(topic.max_priority)
    call = BoundScript("promote").call(topic, 1, list, actor="me", contents=[b"a"])
    assert call.args == ["high", 3, ages.scale, "PUBLISH", "me", b"a"]
    assert BoundScript("promote").call(topic, 1, list, order="low", actor="", contents=[]).args[0] == "low"
    assert call.keys == BoundScript("promote").keys_of(topic, 1)


def test_keys_come_in_the_order_of_the_header() -> None:
    topic, keys = Topic("t", TopicType.PRIORITY, slots=1), slot_keys("t", 0)
    assert BoundScript("extend").keys_of(topic, 0) == (keys.store, keys.prepare, keys.meta)
    assert BoundScript("cancel").keys_of(topic, 0)[-1] == keys.audit
    assert BoundScript("cancel").keys_of(topic.changed(ttl="1m"), 0)[-1] == keys.born
    merging = Topic("t", TopicType.PRIORITY, slots=1, merge=Merge())
    assert BoundScript("claim").keys_of(merging, 0)[-1] == keys.held
    assert BoundScript("claim").keys_of(merging.changed(ttl="1m"), 0)[-2:] == (keys.born, keys.held)
    assert BoundScript("promote").keys_of(merging, 0)[-2:] == (keys.held, keys.body)
    assert BoundScript("audit").keys_of(topic, 0) == (keys.audit,)
    assert BoundScript("peek").keys_with(topic, 0, {"zset": "z"}) == ("z", keys.body)
    with pytest.raises(AttributeError, match="zset"):
        BoundScript("peek").keys_of(topic, 0)
    with pytest.raises(TypeError, match="script peek has no keys zest"):
        BoundScript("peek").keys_with(topic, 0, {"zset": "z", "zest": "z"})
    assert BoundScript("stream_join").keys_of(topic, 0, "g") == (keys.store, keys.meta, "group:g{t_0}")


def test_every_key_of_a_header_has_a_name_that_the_table_of_keys_knows() -> None:
    known = {*SlotKeys.__slots__, *GroupKeys.__slots__, *QueryKeys.__slots__, *OWNERS_KEYS}
    own = {
        "bucket",
        "limit",
        "lock",
        "ring",
        "topics",
        "beats",
        "infos",
        "zset",
        "source",
        "query_body",
        "sent",
        "sizes",
    }
    for script in default_scripts().names():
        keys = default_scripts()[script].keys
        assert {*keys.required, *keys.optional} <= known | own, script
