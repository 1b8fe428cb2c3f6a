"""Sentences that no manual would print stay out of the code and the pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WORST = (
    "the first send or consumer does it",
    "their leases settle them",
    "does not lie ahead of",
    "told message by message",
    "which it needs",
    "to look for smaller ones elsewhere",
    "has to go with them",
    "are read for, as far as memory allows",
    "in the eyes of one consumer",
    "refuse a stream topic, whose entries",
    "Answer Prometheus",
    "Refuse all claims from a topic",
    "How long running handlers may finish",
    "whatever it says itself",
    "First mend the cause",
    "must bear a second delivery",
    "Whether nothing is under way but to",
    "a reply that names a message means none of these",
    "What has lost its lease or its slot goes back",
)
"""What a review of errors, docstrings, help and pages found hardest to read."""


@pytest.mark.parametrize("sentence", WORST)
def test_a_sentence_is_gone(sentence: str) -> None:
    words = re.compile(r"\s+".join(map(re.escape, sentence.split())))
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    files += [path for path in (ROOT / "rmq").rglob("*") if path.suffix in (".py", ".html")]
    assert [path.relative_to(ROOT).as_posix() for path in files if words.search(path.read_text("utf-8"))] == []
