"""Which module binds which script."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.support.core import BoundScript

ROOT = Path(__file__).resolve().parents[2] / "rmq"
MODULES = [
    *(path for path in sorted((ROOT / "_broker").glob("*.py")) if path.stem != "binding"),
    *sorted((ROOT / "_registry").glob("*.py")),
    *sorted((ROOT / "_admin" / "calls").glob("*.py")),
    ROOT / "_admin" / "control.py",
    ROOT / "_admin" / "history.py",
    ROOT / "_admin" / "stream_view.py",
    ROOT / "spark" / "calls.py",
    ROOT / "spark" / "marks.py",
]
"""The modules that build calls of scripts."""


def bound_in(module: Path) -> dict[str, BoundScript]:
    """The variables of a module that stand for a script."""
    name = ".".join(module.relative_to(ROOT.parent).with_suffix("").parts)
    return {name: value for name, value in vars(import_module(name)).items() if isinstance(value, BoundScript)}
