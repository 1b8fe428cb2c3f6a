"""The diagrams of the pages: their files are up to date, and a mistake in a diagram is told."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from docs_site.diagrams import FOLDER, diagrams
from docs_site.sequences import Sequence
from docs_site.staging import ROOT

PAIR = "participant A as Ann\nparticipant B as Bob\n"


def test_the_files_are_up_to_date() -> None:
    """`python -m docs_site.diagrams` writes them."""
    drawn = diagrams()
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(drawn)
    assert [name for name, text in drawn.items() if (FOLDER / f"{name}.svg").read_text("utf-8") != text] == []


def test_every_picture_stands_on_a_page_and_no_page_has_code_for_one() -> None:
    pages = [path.read_text("utf-8") for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]]
    shown = {name for page in pages for name in re.findall(r"pictures/([a-z_]+)\.svg\)", page)}
    assert shown == set(diagrams())
    assert not any("```mermaid" in page for page in pages)


@pytest.mark.parametrize("name", sorted(diagrams()))
def test_words_and_boxes_stay_within_the_picture(name: str) -> None:
    root = ElementTree.fromstring(diagrams()[name])
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert root.attrib["aria-label"]
    for each in root.iter():
        if each.tag.endswith("}text"):
            x, length = float(each.attrib["x"]), 6.4 * len(each.text or "")
            left = x - length * {"start": 0, "middle": 0.5, "end": 1}[each.attrib["text-anchor"]]
            assert left >= 0, each.text
            assert left + length <= width, each.text
            assert 0 < float(each.attrib["y"]) < height, each.text
        elif each.tag.endswith("}rect") and "x" in each.attrib:
            assert 0 <= float(each.attrib["x"])
            assert float(each.attrib["x"]) + float(each.attrib["width"]) <= width


def test_a_sequence_has_its_steps_in_order() -> None:
    svg = Sequence(PAIR + "A->>B: ask\nB->>B: think\nB-->>A: answer\nB--xA: lost\nNote over A: done").draw("Asking")
    words = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert words == ["Ann", "Bob", "ask", "think", "answer", "lost", "done"]
    assert svg.count("stroke-dasharray") == 2
    assert svg.count('class="cross"') == 1


def test_frames_enclose_their_steps() -> None:
    svg = Sequence(PAIR + "alt yes\nA->>B: go\nelse no\nloop ever\nA->>B: wait\nend\nend").draw("Cases")
    assert svg.count('class="frame"') == 3
    found = re.findall(r'y="([\d.]+)"[^>]*height="([\d.]+)"[^>]*"frame"', svg)
    outer, inner = sorted((float(y), float(y) + float(height)) for y, height in found)
    assert outer[0] < inner[0] < inner[1] <= outer[1]


def test_a_line_that_is_no_step_is_named() -> None:
    with pytest.raises(ValueError, match="'A=>B: what'"):
        Sequence(PAIR + "A=>B: what").draw("Wrong")
