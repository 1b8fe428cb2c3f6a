"""The pages for Spark's users name every option, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

from rmq.spark.options import OPTION_NAMES

GUIDE = Path(__file__).parents[3] / "docs/guide"
PAGES = "\n".join(page.read_text("utf-8") for page in sorted(GUIDE.glob("spark*.md")))
REFUSED = {"leaseSeconds"}


def options_in_tables() -> set[str]:
    tables = re.findall(r"^\| option \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGES, re.MULTILINE)
    rows = [row.split("|")[1] for table in tables for row in table.splitlines()]
    return {name for row in rows for name in re.findall(r"`([A-Za-z_]+)`", row)}


def test_the_tables_have_every_option_and_no_other() -> None:
    assert options_in_tables() == set(OPTION_NAMES) - REFUSED


def test_those_that_are_refused_are_told_of() -> None:
    [sentence] = re.findall(r"An unknown option is an error\.[^#]*", PAGES)
    assert all(f"`{name}`" in sentence for name in REFUSED)


def test_the_first_table_leads_to_every_page() -> None:
    first_table = (GUIDE / "spark.md").read_text("utf-8").partition("\n## ")[0]
    linked = set(re.findall(r"\]\((spark[\w-]*\.md)", first_table))
    assert linked == {page.name for page in GUIDE.glob("spark-*.md")}
