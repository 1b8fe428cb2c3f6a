"""What users get: names and signatures, the same on both sides. What has changed since a release, CHANGELOG.md names.

public_surface.txt has those of the last release; at the next, `python -m tests.unit.test_public_surface` writes it.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pickle
import re
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import rmq
from docs_site.reference import MODULES
from rmq import aio, testing
from rmq.aio.proxy import async_iterator

SNAPSHOT = Path(__file__).with_name("public_surface.txt")
ROOT = Path(__file__).parents[2]

GIVEN = {
    rmq.Consumer, rmq.Control, rmq.DeadEntry, rmq.DeadLetters, rmq.DeadNotices, rmq.Delivery, rmq.DeliveryColumns,
    rmq.GroupDead, rmq.History, rmq.Inspection, rmq.Producer, rmq.Schedules, rmq.StreamDelivery, rmq.StreamTopic,
    testing.Clock,
}  # fmt: skip
"""Classes whose objects a client, or a test server, gives out: nobody else calls their constructors."""

INTERNAL = {
    "Coordinator.others": "the workers' documents, for the ownership follower",
    "Topic.from_document": "for the registry",
    "Topic.typed": "for the listeners",
}
"""Members of public classes that take or return what is not public."""

ONLY_THREADS = {
    "Consumer.settle": "for its deliveries",
    "Consumer.still_owner": "for its deliveries",
    "Delivery.claim": "for the settlements",
    "Delivery.decode": "for the listeners",
    "Delivery.decoded": "for the listeners",
    "Delivery.forget_payload": "for the listeners",
    "Delivery.refuse_if_settled": "for the settlements",
    "Delivery.row": "for the settlements",
    "DelayedQueue.claim": "what `taking` is built of",
    "DelayedQueue.claim_many": "what `take_many` is built of",
    "DelayedQueue.claim_soon": "what `poll` is built of",
    "DelayedQueue.finish": "what `taking` is built of",
    "DelayedQueue.keep": "what `take` is built of",
    "DelayedQueue.keep_many": "what `take_many` is built of",
    "DelayedQueue.put_back": "what `taking` is built of",
    "DelayedQueue.value_of": "what `taking` is built of",
    "DelayedQueue.values_of": "what `take_many` is built of",
    "History.append": "for the recorder",
    "History.record": "for the recorder",
    "History.take_turn": "for the recorder",
    "ListenerOptions.threads": "`concurrency` stands for it",
    "RmqClient.observers": "observers are called from threads",
    "RmqClient.shown_url": "known once the client is open; ask the URL that it was made with",
    "RmqClient.url": "known once the client is open; ask the URL that it was made with",
}
ONLY_ASYNCIO = {
    "DelayedQueue.open": "a constructor cannot be awaited",
    "ListenerOptions.concurrency": "it stands for `threads`",
    "RmqClient.open": "a constructor cannot be awaited",
}
OTHER_PARAMETERS = {
    "RmqClient.run": "concurrency instead of threads",
    "RmqClient.start": "concurrency instead of threads",
}
"""Where the sides differ, and why."""


def test_the_change_log_names_what_has_changed_since_the_last_release() -> None:
    latest = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)[1]
    assert list(untold(SNAPSHOT.read_text().splitlines(), surface(), latest)) == []


def test_a_change_is_told_by_its_name_and_by_what_is_new_or_gone_in_it() -> None:
    kept = ["rmq.A", "rmq.A.b(c: int = 1) -> str", "rmq.Gone", "rmq.Gone.member"]
    found = ["rmq.A", "rmq.A.b(d: int = 2) -> str", "rmq.A.new()"]
    told = "`A.b`: `d=2` instead of `c=1`; `A.new()`, `Gone`"
    assert list(untold(kept, found, told)) == []
    assert list(untold(kept, found, told.replace("=1", ""))) == [found[1]]
    assert list(untold(kept, found, told.replace("new", "newer"))) == [found[2]]
    assert list(untold(kept, found, told.replace("`", ""))) == [*found[1:], "rmq.Gone"]


def test_every_class_that_the_surface_mentions_is_public() -> None:
    public = {value for _, _, value in exported() if isinstance(value, type)}
    hidden = {
        f"{where} mentions {named.__module__}.{named.__qualname__}"
        for name, module, value in exported()
        if isinstance(value, type) and module != "rmq.spark"  # it answers to Spark's interface
        for where, annotation in annotations_of(name, value)
        for named in classes_in(annotation)
        if named not in public and where not in INTERNAL
    }
    assert not hidden, "\n".join(sorted(hidden))


@pytest.mark.parametrize("name", sorted(set(aio.__all__)))
def test_both_sides_offer_the_same(name: str) -> None:
    plain, awaited = getattr(rmq, name), getattr(aio, name)
    if not isinstance(awaited, type):
        assert list(inspect.signature(plain).parameters) == list(inspect.signature(awaited).parameters)
        return
    here, there = dict(members(plain)), dict(members(awaited))
    if issubclass(awaited, aio.Delivery | aio.DeliveryColumns):
        there |= dict.fromkeys(declared_for_type_checkers(awaited))
    only = {each.split(".")[1] for each in ONLY_THREADS if getattr(rmq, each.split(".")[0]) in plain.__mro__}
    missing = here.keys() - there.keys() - only
    more = {each for each in there.keys() - here.keys() if f"{name}.{each}" not in ONLY_ASYNCIO}
    assert not missing, f"rmq.aio.{name} lacks {missing}"
    assert not more, f"rmq.{name} lacks {more}"
    for each in sorted(here.keys() & there.keys()):
        if callable(here[each]) and callable(there[each]) and f"{name}.{each}" not in OTHER_PARAMETERS:
            assert parameters(here[each]) == parameters(there[each]), f"{name}.{each} takes different parameters"
        if hasattr(there[each], "method"):
            yields = str(here[each].__annotations__["return"]).startswith("Iterator")
            assert yields == isinstance(there[each], async_iterator), f"{name}.{each}: async for, or await?"


def test_differences_between_the_sides_are_real() -> None:
    for name in (*ONLY_THREADS, *ONLY_ASYNCIO, *OTHER_PARAMETERS, *INTERNAL):
        owner, member = name.split(".")
        side = aio if name in ONLY_ASYNCIO else rmq
        assert member in dict(members(getattr(side, owner))), f"{name} is gone: take it off the list"


def test_errors_read_as_users_import_them_and_travel() -> None:
    error = rmq.SendError("full", topic="prices", stored=3)
    assert str(type(error)) == "<class 'rmq.SendError'>"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.topic, again.stored) == (rmq.SendError, "prices", 3)
    assert all(getattr(rmq, name) is getattr(rmq.errors, name) for name in rmq.errors.__all__)


def test_every_error_is_public_and_stands_in_the_tree() -> None:
    kinds = {name for name, value in vars(rmq.errors).items() if isinstance(value, type) and "Error" in name}
    assert sorted(kinds) == sorted(rmq.errors.__all__)
    tree = re.findall(r"^\W*(\w+Error)\b", rmq.errors.__doc__ or "", re.MULTILINE)
    assert sorted(tree) == sorted(kinds)


def test_importing_rmq_leaves_the_faces_and_their_packages_alone() -> None:
    heavy = "kazoo", "pyspark", "starlette", "typer", "rich", "prometheus_client", "greenlet"
    heavy += "msgspec", "pydantic", "zstandard", "fast_depends"
    code = f"import rmq, sys; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_docs_and_examples_import_from_public_places_only() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/guide/**/*.md"), *ROOT.glob("docs/operate/**/*.md")]
    private = [
        f"{page.relative_to(ROOT)}: {line.strip()}"
        for page in (*pages, *ROOT.glob("examples/**/*.py"))
        for line in page.read_text().splitlines()
        if re.search(r"\brmq\.(\w+\.)*_[a-z]", line)
    ]
    assert not private, "\n".join(private)


def untold(kept: list[str], found: list[str], log: str) -> Iterator[str]:
    """Yield the lines that are new, gone or other ones, unless code in one item of a change log names them."""
    before, after = ({line.split("(")[0].split(":")[0].split()[0]: line for line in lines} for lines in (kept, found))
    items = [" ".join(re.findall(r"`([^`]+)`", item)) for item in re.split(r"^- ", log, flags=re.MULTILINE)]
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, ""), after.get(name, "")
        module = max((each for each in MODULES if name.startswith(f"{each}.")), key=len)
        words = {name.removeprefix(f"{module}.")}
        if old and new:
            words |= set(re.findall(r"\w+", old)) ^ set(re.findall(r"\w+", new))
        owner_too = (name.rpartition(".")[0] in before) is not (name.rpartition(".")[0] in after)
        told = any(all(re.search(rf"\b{re.escape(each)}\b", code) for each in words) for code in items)
        if old != new and not owner_too and not told:
            yield new or old


def surface() -> list[str]:
    """Return one line for each public name and for each of its members."""
    lines: list[str] = []
    for name, module, value in exported():
        where = f"{module}.{name}"
        if inspect.isfunction(value):
            lines.append(f"{where}{shown(value)}")
        elif not isinstance(value, type):
            lines.append(where)
        elif issubclass(value, Enum):
            lines.append(f"{where}: {', '.join(each.name for each in value)}")
        else:
            lines.append(where + ("" if value in GIVEN or is_given(value) else shown(value)))
            lines += [f"{where}.{each}{shown(member)}" for each, member in members(value)]
    return lines


def exported() -> Iterator[tuple[str, str, Any]]:
    """Yield name, module and value of what is public."""
    for module in map(importlib.import_module, MODULES):
        for name in sorted(module.__all__):
            if name != "__version__":
                yield name, module.__name__, getattr(module, name)


def is_given(value: type) -> bool:
    """Return whether it is the awaited face of what a client gives out."""
    return value.__module__.startswith("rmq.aio") and getattr(rmq, value.__name__) in GIVEN


def members(value: type) -> Iterator[tuple[str, Any]]:
    """Yield the public members of a class, also those that it has from other classes of RMQ."""
    found: dict[str, Any] = {}
    for base in reversed(value.__mro__):
        if base.__module__.split(".")[0] == "rmq":
            found |= dict.fromkeys(inspect.get_annotations(base))
            found |= {name: member for name, member in vars(base).items() if member is not None}
    found |= dict.fromkeys(attributes_of(value), None)
    for name in sorted(found):
        if not name.startswith("_"):
            member = found[name]
            yield name, getattr(member, "__func__", member)


def attributes_of(value: type) -> set[str]:
    """Return what the constructors set: public attributes that no annotation of the class names."""
    found: set[str] = set()
    for base in value.__mro__:
        made = base.__dict__.get("__init__")
        if base.__module__.split(".")[0] != "rmq" or not inspect.isfunction(made) or dataclasses.is_dataclass(base):
            continue
        found |= set(re.findall(r"\bself\.([a-z]\w*)(?:: [^=\n]+)? = ", inspect.getsource(made)))
    return found


def shown(member: Any) -> str:
    """Return a member's signature."""
    if isinstance(member, property):
        return f": {typing.cast('Any', member.fget).__annotations__.get('return')}"
    if not callable(member) and not hasattr(member, "method"):
        return ""
    kind = type(member).__name__
    waited = f"{kind} " if hasattr(member, "method") else "awaited " if inspect.iscoroutinefunction(member) else ""
    try:
        signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(plain_of(member))))
        return f"{waited and ' '}{waited}{signature}"
    except ValueError:
        return ""


def plain_of(member: Any) -> Any:
    """Return the function that a member of the asyncio side carries out."""
    return getattr(member, "method", member)


def parameters(member: Any) -> list[tuple[str, Any, Any]]:
    """Return the parameters of a method, without their types."""
    wanted = inspect.signature(plain_of(member)).parameters.values()
    return [(each.name, each.kind, each.default) for each in wanted]


FACTS = {
    base.__name__: base
    for value in (rmq.Delivery, rmq.DeliveryColumns)
    for base in value.__mro__
    if base.__name__.endswith("Facts")
}
"""Classes whose members the asyncio side declares by their name."""


def declared_for_type_checkers(value: type) -> set[str]:
    """Return the names that a class of the asyncio side declares and passes on at run time."""
    names: set[str] = set()
    for base in value.__mro__[:-1]:
        for node in ast.walk(ast.parse(inspect.getsource(base))):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                names.add(node.name)
            elif isinstance(node, ast.Name) and node.id in FACTS:
                names |= dict(members(FACTS[node.id])).keys()
    return names


@cache
def every_name() -> dict[str, Any]:
    """Return what annotations may name: what a module imports for type checkers only is not in its namespace."""
    modules = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "rmq"]
    return {name: value for module in modules for name, value in vars(module).items() if not name.startswith("__")}


def annotations_of(name: str, value: type) -> Iterator[tuple[str, Any]]:
    """Yield what the members of a class are annotated with."""
    for base in value.__mro__:
        if base.__module__.split(".")[0] != "rmq" or issubclass(base, Enum):
            continue
        for each, annotation in types_in(base).items():
            if not each.startswith("_"):
                yield f"{name}.{each}", annotation
        for each, member in vars(base).items():
            function = getattr(member, "__func__", getattr(member, "fget", plain_of(member)))
            made = each == "__init__" and not (value in GIVEN or is_given(value) or dataclasses.is_dataclass(base))
            if inspect.isfunction(function) and (made or not each.startswith("_")):
                yield from ((f"{name}.{each}", annotation) for annotation in types_in(function).values())


def types_in(value: Any) -> dict[str, Any]:
    """Return the annotations of a class or a function, as types."""
    own = vars(sys.modules[value.__module__]) if isinstance(value, type) else value.__globals__
    return typing.get_type_hints(value, {**every_name(), **own})


def classes_in(annotation: Any) -> Iterator[type]:
    """Yield the classes of RMQ in an annotation."""
    if isinstance(annotation, list):
        for each in typing.cast("list[Any]", annotation):
            yield from classes_in(each)
    elif isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if annotation.__module__.split(".")[0] == "rmq":
            yield annotation
    else:
        for each in typing.get_args(annotation):
            yield from classes_in(each)


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(surface()) + "\n")
