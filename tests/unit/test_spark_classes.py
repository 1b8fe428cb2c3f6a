"""With which options the JVMs of Spark start in tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import spark_classes


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))


def test_without_an_archive_a_jvm_only_starts_quickly() -> None:
    assert spark_classes.jvm_options() == spark_classes.QUICK


def test_an_archive_is_of_an_environment_and_of_a_version_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_classes.archive().touch()
    assert spark_classes.archive().parent == tmp_path
    assert f"-XX:SharedArchiveFile={spark_classes.archive()}" in spark_classes.jvm_options().split()
    monkeypatch.setattr("importlib.metadata.version", lambda _: "4.4.0")
    assert spark_classes.jvm_options() == spark_classes.QUICK
