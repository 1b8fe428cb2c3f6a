"""Draws sequence diagrams from text: who calls whom, in order. The text is a part of Mermaid's language.

participant A as Worker A
A->>R: a message             (-->> for an answer, --x for one that gets lost; A->>A: what A does itself)
Note over A: words
alt first case               (or loop, opt)
else second case
end
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from textwrap import wrap

from docs_site.pictures import picture, write

_PARTICIPANT = re.compile(r"participant (\w+) as (.+)")
_MESSAGE = re.compile(r"(\w+)(->>|-->>|--x)(\w+): (.+)")
_NOTE = re.compile(r"Note over (\w+): (.+)")
_FRAME = re.compile(r"(loop|alt|opt) (.+)")

_LETTER = 7.3
"""How wide a letter is at most, in the mean of a line."""

_LINE, _HEAD, _MARGIN, _LEAST_GAP, _WORDS = 17, 34, 16, 120, 24


@dataclass(frozen=True, slots=True)
class _Message:
    start: int
    end: int
    kind: str
    lines: tuple[str, ...]

    @property
    def width(self) -> float:
        return _LETTER * max(map(len, self.lines))


@dataclass(slots=True)
class _Frame:
    kind: str
    words: str
    top: float
    cases: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])


class Sequence:
    """A sequence diagram.

    Args:
        text: What happens, a step on each line.

    Raises:
        ValueError: A line is none of the steps above.
    """

    def __init__(self, text: str) -> None:
        self._steps = [line.strip() for line in text.strip().splitlines()]
        self._names = {found[1]: found[2] for line in self._steps if (found := _PARTICIPANT.fullmatch(line))}
        self._columns = {name: number for number, name in enumerate(self._names)}
        self._places, self._width = self._layout()

    def _messages(self) -> Iterator[_Message]:
        for line in self._steps:
            if found := _MESSAGE.fullmatch(line):
                yield self._message(found)

    def _message(self, found: re.Match[str]) -> _Message:
        start, kind, end, words = found.groups()
        return _Message(self._columns[start], self._columns[end], kind, tuple(wrap(words, _WORDS)))

    def _layout(self) -> tuple[list[float], float]:
        """Return where the lifelines stand, so that each text has its place, and how wide the picture is."""
        last = len(self._columns) - 1
        gaps = [float(_LEAST_GAP)] * last
        right = _LEAST_GAP / 2
        for each in self._messages():
            low, high = sorted((each.start, each.end))
            if low == high == last:
                right = max(right, each.width + 44)
            elif low == high:
                gaps[low] = max(gaps[low], each.width + 52)
            else:
                short = each.width + 36 - sum(gaps[low:high])
                gaps[low] += max(0.0, short)
        places = [_MARGIN + _LEAST_GAP / 2 + 6]
        for gap in gaps:
            places.append(places[-1] + gap)
        return places, places[-1] + right + _MARGIN

    def draw(self, title: str) -> str:
        """Return the picture."""
        y, frames, parts = _HEAD + 34.0, list[_Frame](), list[str]()
        for line in self._steps:
            if found := _MESSAGE.fullmatch(line):
                y, drawn = self._arrow(self._message(found), y)
                parts += drawn
            elif found := _NOTE.fullmatch(line):
                y, drawn = self._note(self._columns[found[1]], tuple(wrap(found[2], _WORDS)), y)
                parts += drawn
            elif found := _FRAME.fullmatch(line):
                frames.append(_Frame(found[1], found[2], y - 8))
                y += 32
            elif line.startswith("else "):
                frames[-1].cases.append((y - 8, line.removeprefix("else ")))
                y += 32
            elif line == "end":
                parts = [*self._frame(frames.pop(), y - 8), *parts]
                y += 12
            elif not _PARTICIPANT.fullmatch(line):
                raise ValueError(f"{line!r} is no step of a sequence diagram")
        return picture(title, round(y + 6), *self._lifelines(y), *parts, width=round(self._width))

    def _lifelines(self, bottom: float) -> Iterator[str]:
        for name, x in zip(self._names.values(), self._places, strict=True):
            width = max(84.0, _LETTER * len(name) + 22)
            yield f'<path d="M{x:g} {_MARGIN + _HEAD} V{bottom:g}" class="life"/>'
            yield f'<rect x="{x - width / 2:g}" y="{_MARGIN}" width="{width:g}" height="{_HEAD}" rx="6" class="box"/>'
            yield write(x, _MARGIN + 22, name, "head", "middle")

    def _arrow(self, message: _Message, y: float) -> tuple[float, list[str]]:
        start, end = self._places[message.start], self._places[message.end]
        if message.start == message.end:
            return self._own(start, message.lines, y)
        parts: list[str] = []
        for words in message.lines:
            parts.append(write((start + end) / 2, y + 10, words, "over", "middle"))
            y += _LINE
        y += 3
        way = 1 if end > start else -1
        dashes = ' stroke-dasharray="5 4"' if message.kind != "->>" else ""
        if message.kind == "--x":
            middle = (start + end) / 2
            parts.append(f'<path d="M{start:g} {y:g} H{middle:g}" class="arrow"{dashes}/>')
            parts.append(f'<path d="M{middle - 5:g} {y - 5:g} l10 10 m0 -10 l-10 10" class="cross"/>')
        else:
            parts.append(f'<path d="M{start:g} {y:g} H{end - 6 * way:g}" class="arrow"{dashes}/>')
            parts.append(f'<path d="M{end - way:g} {y:g} l{-8 * way} -4.5 v9 z" class="tip"/>')
        return y + 17, parts

    def _own(self, x: float, lines: tuple[str, ...], y: float) -> tuple[float, list[str]]:
        """Draw what a participant does itself: a dot on its line, and words beside it."""
        parts = [f'<circle cx="{x:g}" cy="{y + 6:g}" r="4.5" class="dot"/>']
        for words in lines:
            parts.append(write(x + 14, y + 11, words, "over"))
            y += _LINE
        return y + 12, parts

    def _note(self, column: int, lines: tuple[str, ...], y: float) -> tuple[float, list[str]]:
        width = _LETTER * max(map(len, lines)) + 20
        left = min(max(self._places[column] - width / 2, _MARGIN), self._width - _MARGIN - width)
        height = _LINE * len(lines) + 10
        parts = [f'<rect x="{left:g}" y="{y - 4:g}" width="{width:g}" height="{height}" rx="4" class="note"/>']
        parts += [write(left + width / 2, y + 13 + _LINE * n, words, "", "middle") for n, words in enumerate(lines)]
        return y + height + 12, parts

    def _frame(self, frame: _Frame, bottom: float) -> list[str]:
        left, width = 6, self._width - 12
        parts = [
            f'<rect x="{left}" y="{frame.top:g}" width="{width:g}" height="{bottom - frame.top:g}" '
            'rx="6" class="frame"/>'
        ]
        for top, words in [(frame.top, f"{frame.kind}: {frame.words}"), *frame.cases]:
            if top != frame.top:
                parts.append(f'<path d="M{left} {top:g} h{width:g}" class="frame" stroke-dasharray="5 4"/>')
            label = words if top == frame.top else f"else: {words}"
            parts.append(write(left + 10, top + 18, label, "case over"))
        return parts
