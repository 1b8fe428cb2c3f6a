"""The core of each release, frozen in tests/releases, so that tests run it beside the current one.

    python -m tests.support.releases

writes that of this checkout, `tests/releases/VERSION.tar.xz`: `lua`, and what `import rmq` needs. Comments and
docstrings are left out, which halves the file; the headers of scripts are their contract, and stay. Once a release is
out, its file never changes.
"""

from __future__ import annotations

import ast
import io
import lzma
import re
import tarfile
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from rmq import __version__

ROOT = Path(__file__).resolve().parents[2]
RELEASES = ROOT / "tests/releases"
FROZEN = RELEASES / f"{__version__}.tar.xz"
"""The release of this checkout."""

_FACES = {"adapters", "aio", "cli", "dashboard", "demo", "metrics", "otel", "spark", "spi", "testing", "views"}
"""What `import rmq` does not need."""


def released() -> list[str]:
    """Return the versions that are frozen."""
    return sorted(path.name.removesuffix(".tar.xz") for path in RELEASES.glob("*.tar.xz"))


def unpack(version: str, folder: Path) -> None:
    """Unpack a release into an empty folder."""
    with tarfile.open(RELEASES / f"{version}.tar.xz") as archive:
        archive.extractall(folder, filter="data")


def packed() -> bytes:
    """Return the release of this checkout: the same files give the same bytes."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path, text in _files():
            data = text.encode()
            entry = tarfile.TarInfo(path.relative_to(ROOT).as_posix())
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return lzma.compress(content.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def _files() -> Iterator[tuple[Path, str]]:
    for path in sorted((ROOT / "rmq").rglob("*.py")):
        if path.relative_to(ROOT).parts[1] not in _FACES:
            yield path, ast.unparse(_without_docstrings(ast.parse(path.read_text("utf-8"))))
    for path in sorted((ROOT / "lua").rglob("*.lua")):
        text = path.read_text("utf-8")
        head = "" if path.parent.name == "libraries" else "".join(takewhile(_is_comment, text.splitlines(True)))
        yield path, head + re.sub(r"^ *--(?! @include).*\n", "", text.removeprefix(head), flags=re.MULTILINE)


def _is_comment(line: str) -> bool:
    return line.startswith("--")


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            code = [each for each in body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
            node.body = code or [ast.Pass()]  # pyright: ignore[reportAttributeAccessIssue]
    return tree


if __name__ == "__main__":
    print(f"{FROZEN.relative_to(ROOT)}: {FROZEN.write_bytes(packed()):,} bytes")
