"""The release before this one, from git: its newest tag, else its last commit half a day before this one."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_HALF_A_DAY_S = 43_200
_PARTS = ("rmq", "lua", "pyproject.toml")


def release_before(folder: Path, commit: str | None = None) -> str | None:
    """Unpack the release before into a folder; return its commit, None where there is none.

    Args:
        folder: An empty folder.
        commit: This one instead.
    """
    found = commit or _before()
    if not found:
        return None
    packed = subprocess.run(["git", "archive", found, *_PARTS], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return found


def _before() -> str:
    tagged = _git("describe", "--tags", "--abbrev=0", "HEAD~1")
    if tagged:
        return tagged
    at_s = _git("log", "-1", "--format=%ct")
    if not at_s:
        return ""
    return _git("log", "-1", "--format=%h", f"--before={int(at_s) - _HALF_A_DAY_S}")


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
