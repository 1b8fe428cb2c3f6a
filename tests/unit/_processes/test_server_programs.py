"""Which server programs read which data."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq._processes.server_programs import KeptData, ServerProgram, kept_data

MANIFEST = "file appendonly.aof.7.base.rdb seq 7 type b\nfile appendonly.aof.9.incr.aof seq 9 type i\n"


def program(name: str, major: int, minor: int) -> ServerProgram:
    return ServerProgram(Path("/program"), name, (major, minor))


@pytest.mark.parametrize(
    ("data", "writer", "readers"),
    [
        (KeptData(split=False, rdb=9), "", "Redis 6.2, Redis 7.0, Redis 7.2, Redis 8.0, Valkey 8.1, Valkey 9.1"),
        (KeptData(split=True), "Redis 7.0", "Redis 7.0, Redis 7.2, Redis 8.0, Valkey 8.1, Valkey 9.1"),
        (KeptData(split=True, rdb=10), "Redis 7.0", "Redis 7.0, Redis 7.2, Redis 8.0, Valkey 8.1, Valkey 9.1"),
        (KeptData(split=True, rdb=11), "Redis 7.2", "Redis 7.2, Redis 8.0, Valkey 8.1, Valkey 9.1"),
        (KeptData(split=True, rdb=12), "Redis 7.4", "Redis 8.0"),
        (KeptData(split=True, rdb=14), "a Redis with RDB version 14", "Redis 8.0"),  # or a later one: it says so itself
        (KeptData(split=True, valkey=True, rdb=80), "Valkey 9.0", "Valkey 9.1"),
    ],
)
def test_only_programs_that_are_sure_to_fail_are_left_out(data: KeptData, writer: str, readers: str) -> None:
    programs = [program("Redis", *version) for version in ((6, 2), (7, 0), (7, 2), (8, 0))]
    programs += [program("Valkey", 8, 1), program("Valkey", 9, 1)]
    fit = [f"{each.name} {each.version[0]}.{each.version[1]}" for each in programs if data.readable_by(each)]
    assert ", ".join(fit) == readers
    assert not writer or data.writer == writer


def test_the_format_stands_at_the_start_of_the_files(tmp_path: Path) -> None:
    assert kept_data(tmp_path) is None
    (tmp_path / "appendonly.aof").write_bytes(b"*2\r\n$6\r\nSELECT\r\n")
    assert kept_data(tmp_path) == KeptData(split=False)
    (tmp_path / "appendonly.aof").write_bytes(b"REDIS0009\xfa")
    assert kept_data(tmp_path) == KeptData(split=False, rdb=9)
    split = tmp_path / "appendonlydir"
    split.mkdir()
    assert kept_data(tmp_path) == KeptData(split=True)
    (split / "appendonly.aof.manifest").write_text(MANIFEST)
    assert kept_data(tmp_path) == KeptData(split=True)  # what the manifest names is missing: the server says so
    (split / "appendonly.aof.7.base.rdb").write_bytes(b"REDIS0012\xfa")
    assert kept_data(tmp_path) == KeptData(split=True, rdb=12)
    (split / "appendonly.aof.7.base.rdb").write_bytes(b"VALKEY080\xfa")
    assert kept_data(tmp_path) == KeptData(split=True, valkey=True, rdb=80)
