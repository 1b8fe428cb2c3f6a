"""Builds the site strictly, offline: `python -m docs_site`; the result is build/docs/site/index.html.

A broken link, a page that nothing leads to, or a public name without a docstring ends it with 1.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from docs_site import check, navigation, reference
from docs_site.finish import finish
from docs_site.staging import ROOT, SiteError, Staging

BUILD = ROOT / "build/docs"


def main() -> int:
    """Build the site, and return the exit code."""
    try:
        site = build(BUILD)
    except SiteError as error:
        print(f"the documentation does not build: {error}", file=sys.stderr)
        return 1
    print(f"{len(list(site.rglob('*.html')))} pages: {site.relative_to(ROOT)}/index.html")
    print(f"with the search: python -m http.server --directory {site.relative_to(ROOT)}")
    return 0


def build(folder: Path) -> Path:
    """Build the site in a folder, and return where its pages are.

    Raises:
        SiteError: Something is broken; the message has one line for each fault.
    """
    staging = Staging(folder / "pages")
    staging.stage()
    reference.fill(staging.folder)
    settings: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    navigation.section(settings["nav"], reference.FOLDER).extend(reference.write(staging.folder))
    settings["nav"] = navigation.complete(settings["nav"], staging.folder)
    reader = next(plugin["mkdocstrings"] for plugin in settings["plugins"] if "mkdocstrings" in plugin)
    reader["handlers"]["python"]["paths"] = [str(ROOT)]
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), "utf-8")
    site = folder / settings["site_dir"]
    shutil.rmtree(site, ignore_errors=True)
    generate(folder)
    finish(site, staging.folder, settings)
    if found := sorted(set(check.faults(site))):
        raise SiteError("\n".join(["the site has faults:", *found]))
    return site


def generate(folder: Path) -> None:
    """Run Zensical. A warning is an error, also one that its own strict mode lets pass.

    Raises:
        SiteError: It complained.
    """
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", check=False)  # noqa: S603
    said = re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)
    complaints = [line for line in said.splitlines() if line.startswith(("griffe:", "mkdocstrings:"))]
    if done.returncode or complaints:
        raise SiteError(said)


if __name__ == "__main__":
    sys.exit(main())
