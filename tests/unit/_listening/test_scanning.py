"""Finding marked listeners in a package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq import Topic, TopicType, listener, scan
from rmq.errors import InvalidValueError, RmqError

TOPIC = Topic("t", TopicType.RANGE_MERGE, slots=4)

DECLARE = """
from rmq._listening.listener import listener
from rmq import Topic, TopicType
topic = Topic({name!r}, TopicType.RANGE_MERGE, slots=4)

@listener(topic, batch=10, threads=3)
def handle(deliveries): ...
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable package `scanned`, gone after the test."""
    folder = tmp_path / "scanned"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "deep" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "scanned"]:
        del sys.modules[name]


def test_listeners_are_found_in_all_modules_and_each_once(package: Path) -> None:
    (package / "a.py").write_text(DECLARE.format(name="a"))
    (package / "deep" / "b.py").write_text("from scanned.a import handle as other\n" + DECLARE.format(name="b"))
    found = scan("scanned")
    assert [each.topic.name for each in found] == ["a", "b"]
    assert {(each.batch, each.threads) for each in found} == {(10, 3)}
    assert found[0].handler.__module__ == "scanned.a"
    assert scan("scanned") == found


def test_one_module_or_the_module_itself_can_be_scanned(package: Path) -> None:
    (package / "a.py").write_text(DECLARE.format(name="a"))
    (package / "b.py").write_text(DECLARE.format(name="b"))
    assert [each.topic.name for each in scan("scanned.b")] == ["b"]
    assert [each.topic.name for each in scan(sys.modules["scanned"])] == ["a", "b"]


def test_a_package_without_listeners_gives_none(package: Path) -> None:
    (package / "a.py").write_text("import types\nitself = types\nslotless = object()\n")
    assert scan("scanned") == []


def test_a_program_is_not_run(package: Path) -> None:
    (package / "__main__.py").write_text("raise SystemExit('the program ran')")
    assert scan("scanned") == []


def test_the_error_names_the_module_that_fails(package: Path) -> None:
    (package / "deep" / "broken.py").write_text("import no_such_thing")
    with pytest.raises(InvalidValueError, match=r"scanned\.deep\.broken .*no_such_thing") as caught:
        scan("scanned")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    with pytest.raises(InvalidValueError, match="no_such_package"):
        scan("no_such_package")


def test_decorators_stack_and_give_back_the_function() -> None:
    other = Topic("u", TopicType.PRIORITY, slots=2)

    def handle(delivery: object) -> None: ...

    assert listener(TOPIC)(listener(other)(handle)) is handle
    sys.modules["scanned_by_hand"] = module = type(sys)("scanned_by_hand")
    vars(module)["handle"] = handle
    assert [each.topic for each in scan(module)] == [other, TOPIC]
    del sys.modules["scanned_by_hand"]


def test_wrong_options_show_where_they_stand() -> None:
    with pytest.raises(InvalidValueError, match="threads"):
        listener(TOPIC, threads=0)
    with pytest.raises(RmqError, match="takes no attribute for a listener"):
        listener(TOPIC)(len)
